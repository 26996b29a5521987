//! cuDNN 9's backend (graph) API, loaded at run time.
//!
//! [`Library::load`] finds cuDNN ([`locate`]) and resolves the functions; calling one is `unsafe`, as in C. Enumerations are
//! integers in a newtype ([`types`]): what a newer cuDNN returns is then a number without a name.
//!
//! The numbers are those of `cudnn_graph_v9.h`, which every cuDNN 9 keeps.

pub mod library;
pub mod locate;
pub mod types;

pub use library::{Descriptor, Handle, Library, LoadError};
pub use locate::{CUDNN_VARIABLE, search_path};
pub use types::{
    Attribute, AttributeType, DataType, DescriptorType, HeuristicMode, PointwiseMode, Reordering, Status,
};
