use super::*;
use nvfp4_testkit::golden;
use proptest::prelude::*;
use std::fs;

fn from_golden(file: &golden::File) -> Vec<TensorSpec> {
    file.tensors
        .iter()
        .map(|(name, t)| {
            TensorSpec::new(name, TensorDType::from_name(&t.dtype.to_string()).unwrap(), t.shape.clone())
        })
        .collect()
}

fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Reads a finished checkpoint with the `safetensors` crate: name → (file, dtype, shape, bytes).
fn read_back(folder: &Path) -> std::collections::BTreeMap<String, (String, String, Vec<usize>, Vec<u8>)> {
    let mut all = std::collections::BTreeMap::new();
    for name in listing(folder).into_iter().filter(|n| n.ends_with(".safetensors")) {
        let bytes = fs::read(folder.join(&name)).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        for (tensor, view) in safetensors::SafeTensors::deserialize(&bytes).unwrap().iter() {
            let value = (name.clone(), view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec());
            assert!(all.insert(tensor.to_string(), value).is_none(), "{tensor} is in two files");
        }
    }
    all
}

#[test]
fn files_equal_those_of_the_safetensors_library() {
    let mut compared = 0;
    for entry in fs::read_dir(golden::dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with("ckpt_") {
            continue;
        }
        let file = golden::File::open(&format!("{name}/model.safetensors"));
        if file.metadata.len() != 1 {
            continue; // torchao keeps more in the metadata than `format`
        }
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let writer = CheckpointWriter::create(&target, &from_golden(&file), &WriteOptions::default()).unwrap();
        for (name, tensor) in file.tensors.iter().rev() {
            let mut w = writer.tensor(name).unwrap();
            tensor.bytes.chunks(7).for_each(|piece| w.write(piece).unwrap());
            w.finish().unwrap();
        }
        let summary = writer.finish().unwrap();
        assert_eq!((summary.files, summary.tensors), (1, file.tensors.len()));
        assert_eq!(
            fs::read(target.join("model.safetensors")).unwrap(),
            fs::read(golden::dir().join(&name).join("model.safetensors")).unwrap(),
            "{name}"
        );
        compared += 1;
    }
    assert!(compared > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shards_hold_every_tensor_once(
        tensors in prop::collection::btree_map(
            "[a-z]{1,3}(\\.[a-z\"\\\\é]{1,4}){0,2}",
            (prop::sample::select(TensorDType::ALL), prop::collection::vec(0usize..5, 0..4), any::<u8>()),
            0..20,
        ),
        shard_bytes in 0u64..600,
    ) {
        // Sub-byte types must fill whole bytes.
        let specs: Vec<_> = tensors
            .iter()
            .map(|(name, (dtype, shape, _))| TensorSpec::new(name, *dtype, shape.clone()))
            .filter(|s| (s.shape.iter().product::<usize>() * s.dtype.bits()).is_multiple_of(8))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let options = WriteOptions { shard_bytes, ..Default::default() };
        let writer = CheckpointWriter::create(&target, &specs, &options).unwrap();
        for spec in &specs {
            let fill = tensors[&spec.name].2;
            writer.write_tensor(&spec.name, &vec![fill; spec.bytes().unwrap() as usize]).unwrap();
        }
        let summary = writer.finish().unwrap();
        let back = read_back(&target);
        prop_assert_eq!(back.len(), specs.len());
        for spec in &specs {
            let (_, dtype, shape, bytes) = &back[&spec.name];
            prop_assert_eq!(dtype, spec.dtype.name());
            prop_assert_eq!(shape, &spec.shape);
            prop_assert_eq!(bytes.len() as u64, spec.bytes().unwrap());
            prop_assert!(bytes.iter().all(|&b| b == tensors[&spec.name].2));
        }
        prop_assert_eq!(summary.tensor_bytes, specs.iter().map(|s| s.bytes().unwrap()).sum::<u64>());
        // A file holds more than was asked for only if it holds one non-empty tensor.
        for file in back.values().map(|t| &t.0) {
            let sizes: Vec<_> = back.values().filter(|t| &t.0 == file).map(|t| t.3.len() as u64).collect();
            prop_assert!(sizes.iter().sum::<u64>() <= shard_bytes || sizes.iter().filter(|&&s| s > 0).count() == 1);
        }
        let index = target.join("model.safetensors.index.json");
        prop_assert_eq!(index.exists(), summary.files > 1);
        if summary.files > 1 {
            let index: serde_json::Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
            prop_assert_eq!(index["metadata"]["total_size"].as_u64(), Some(summary.tensor_bytes));
            let map = index["weight_map"].as_object().unwrap();
            prop_assert_eq!(map.len(), specs.len());
            for (name, file) in map {
                prop_assert_eq!(file.as_str(), Some(back[name].0.as_str()));
            }
        }
    }
}

#[test]
fn misuse_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out");
    let specs = [TensorSpec::new("a", TensorDType::F32, [2]), TensorSpec::new("b", TensorDType::U8, [3])];
    let begin = || CheckpointWriter::create(&target, &specs, &WriteOptions::default()).unwrap();

    let writer = begin();
    assert!(matches!(writer.write_tensor("c", &[]), Err(WriteError::Undeclared { .. })));
    assert!(matches!(writer.write_tensor("a", &[0; 7]), Err(WriteError::WrongSize { expected: 8, found: 7, .. })));
    assert!(matches!(writer.write_tensor("a", &[0; 8]), Err(WriteError::Undeclared { .. })));
    let error = writer.finish().unwrap_err();
    assert!(matches!(&error, WriteError::Incomplete { tensor } if tensor == "a"), "{error}");

    let writer = begin();
    assert!(matches!(writer.write_tensor("b", &[0; 4]), Err(WriteError::WrongSize { found: 4, .. })));
    drop(writer);
    let writer = begin();
    writer.write_tensor("a", &[0; 8]).unwrap();
    assert!(matches!(writer.finish(), Err(WriteError::Incomplete { tensor }) if tensor == "b"));
    assert!(listing(folder.path()).is_empty());

    let twice = [specs[0].clone(), specs[0].clone()];
    let twice = CheckpointWriter::create(&target, &twice, &WriteOptions::default());
    assert!(matches!(twice, Err(WriteError::Duplicate { .. })));
    let huge = [TensorSpec::new("h", TensorDType::F32, [usize::MAX, 2])];
    let huge = CheckpointWriter::create(&target, &huge, &WriteOptions::default());
    assert!(matches!(huge, Err(WriteError::TooLarge { .. })));
    assert!(listing(folder.path()).is_empty());
}
