//! The functions of the API that are not implemented. Each says its name, once, and returns `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! Their parameters are not looked at, so none are declared: in the C calling conventions of the systems that this library is built for,
//! the caller looks after the arguments.

use super::{
    boundary::{Failure, call},
    status::Status,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Declares functions.
macro_rules! stubs {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> Status {
                static TOLD: AtomicBool = AtomicBool::new(false);
                refuse(stringify!($name), &TOLD)
            }
        )*

        super::entries! { $($name),* }
    };
}

fn refuse(name: &'static str, told: &AtomicBool) -> Status {
    call(name, || {
        Err(match told.swap(true, Ordering::Relaxed) {
            true => Failure::quiet(Status::NOT_SUPPORTED),
            false => Failure::loud(Status::NOT_SUPPORTED, "the simulator does not implement this function"),
        })
    })
}

stubs! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2
    cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties cuCoredumpDeregisterCompleteCallback
    cuCoredumpDeregisterStartCallback cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
    cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuCoredumpSetAttribute
    cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxDetach cuCtxDisablePeerAccess cuCtxEnablePeerAccess
    cuCtxFromGreenCtx cuCtxGetDevResource cuCtxGetExecAffinity cuCtxRecordEvent cuCtxWaitEvent cuDestroyExternalMemory
    cuDestroyExternalSemaphore cuDevResourceGenerateDesc cuDevSmResourceSplit cuDevSmResourceSplitByCount
    cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceGetDevResource cuDeviceGetFabricClusterUuid
    cuDeviceGetGraphMemAttribute cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid cuDeviceGetP2PAtomicCapabilities
    cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGraphMemTrim cuDeviceRegisterAsyncNotification
    cuDeviceSetGraphMemAttribute cuDeviceUnregisterAsyncNotification cuExternalMemoryGetMappedBuffer
    cuExternalMemoryGetMappedMipmappedArray cuFuncSetBlockShape cuFuncSetSharedSize cuGraphAddBatchMemOpNode
    cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
    cuGraphAddExternalSemaphoresWaitNode cuGraphAddKernelNode cuGraphAddMemAllocNode cuGraphAddMemFreeNode
    cuGraphAddMemcpyNode cuGraphAddNode cuGraphAddNode_v2 cuGraphAddNode_v3 cuGraphBatchMemOpNodeGetParams
    cuGraphBatchMemOpNodeSetParams cuGraphChildGraphNodeGetGraph cuGraphConditionalHandleCreate cuGraphDebugDotPrint
    cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent
    cuGraphEventWaitNodeSetEvent cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams
    cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
    cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetId
    cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
    cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate
    cuGraphExecUpdate_v2 cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
    cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetId
    cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute
    cuGraphKernelNodeGetParams cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2
    cuGraphMemAllocNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams
    cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetDependentNodes
    cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams
    cuGraphNodeGetToolsId cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphNodeSetParams_v2 cuGraphReleaseUserObject
    cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphicsMapResources
    cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags_v2
    cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnregisterResource cuGreenCtxCreate
    cuGreenCtxDestroy cuGreenCtxGetDevResource cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxStreamCreate
    cuGreenCtxWaitEvent cuImportExternalMemory cuImportExternalSemaphore cuIpcCloseMemHandle cuIpcGetEventHandle
    cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuLaunch cuLaunchCooperativeKernelMultiDevice
    cuLaunchGrid cuLaunchGridAsync cuLibraryGetUnifiedFunction cuLinkAddData cuLinkAddData_v2 cuLinkAddFile_v2
    cuLinkComplete cuLinkCreate cuLinkCreate_v2 cuLinkDestroy cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr
    cuLogicalEndpointBindMem cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport
    cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve cuLogicalEndpointImport
    cuLogicalEndpointQuery cuLogicalEndpointUnbind cuMemAddressFree cuMemAddressReserve cuMemBatchDecompressAsync
    cuMemCreate cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync cuMemExportToShareableHandle cuMemGetAccess
    cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemGetDefaultMemPool
    cuMemGetHandleForAddressRange cuMemGetLocationInfo cuMemGetMemPool cuMemImportFromShareableHandle cuMemMap
    cuMemMapArrayAsync cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle
    cuMemPoolImportPointer cuMemPrefetchBatchAsync cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemRelease
    cuMemRetainAllocationHandle cuMemSetAccess cuMemSetMemPool cuMemUnmap cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_v2
    cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DWithAttributesAsync cuMemcpyAtoA_v2 cuMemcpyAtoD_v2
    cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyBatchAsync cuMemcpyBatchAsync_v2 cuMemcpyDtoA_v2 cuMemcpyHtoAAsync_v2
    cuMemcpyHtoA_v2 cuMemcpyWithAttributesAsync cuMipmappedArrayCreate cuMipmappedArrayDestroy
    cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties
    cuModuleGetSurfRef cuModuleGetTexRef cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindAddr_v2
    cuMulticastBindMem cuMulticastBindMem_v2 cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind
    cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuProfilerInitialize
    cuSignalExternalSemaphoresAsync cuStreamBatchMemOp cuStreamBatchMemOp_v2 cuStreamBeginCaptureToCig
    cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph cuStreamCopyAttributes cuStreamEndCaptureToCig
    cuStreamGetAttribute cuStreamGetDevResource cuStreamGetGreenCtx cuStreamSetAttribute cuStreamWaitValue32
    cuStreamWaitValue32_v2 cuStreamWaitValue64 cuStreamWaitValue64_v2 cuStreamWriteValue32 cuStreamWriteValue32_v2
    cuStreamWriteValue64 cuStreamWriteValue64_v2 cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc
    cuSurfRefGetArray cuSurfRefSetArray cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode
    cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags
    cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
    cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode
    cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags
    cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
    cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
    cuWaitExternalSemaphoresAsync
}
