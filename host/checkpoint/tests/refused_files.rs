//! Files that lie: GGUF headers with hostile counts, lengths, types and offsets, shapes that
//! can't be multiplied, shards that don't belong together. Each is refused in one line.

use std::{fs, path::Path};

use tilewright_checkpoint::Checkpoint;

const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;
const Q8_0: u32 = 8;

/// Writes a GGUF header by hand.
#[derive(Default)]
struct Header(Vec<u8>);

impl Header {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut longer = self.u64(text.len() as u64);
        longer.0.extend(text.as_bytes());
        longer
    }

    /// A tensor with the axis that is next in memory first, as ggml counts.
    fn tensor(self, name: &str, shape: &[u64], stored: u32, offset: u64) -> Self {
        let named = self.text(name).u32(shape.len() as u32);
        shape.iter().fold(named, |header, extent| header.u64(*extent)).u32(stored).u64(offset)
    }

    /// The file, with `data` bytes of data at the next multiple of 32.
    fn file(mut self, data: usize) -> Vec<u8> {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + data, 0);
        self.0
    }
}

fn refusal(path: &Path) -> String {
    let message = Checkpoint::open(path).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message:?}");
    message
}

#[test]
fn gguf_files_that_lie_are_refused_in_one_line() {
    let one = |shape: &[u64], stored, offset, data| Header::new(3, 1, 0).tensor("a", shape, stored, offset).file(data);
    let deep = (0..6).fold(Header::new(3, 0, 1).text("k").u32(ARRAY), |header, _| header.u32(ARRAY).u64(1));
    let cases = [
        (Header::default().0, "an empty file"),
        (b"GGUF".to_vec(), "truncated"),
        (Header::new(1, 0, 0).0, "version 1 of GGUF"),
        (Header::new(0x0300_0000, 0, 0).0, "big-endian"),
        (Header::new(9, 0, 0).0, "version 9 of GGUF: 2 and 3 can be read"),
        (Header::new(3, u64::MAX, 0).0, "tensors are announced"),
        (Header::new(3, 0, u64::MAX).0, "keys are announced"),
        (Header::new(3, 0, 1).u64(u64::MAX).0, "the name of a key at byte 24 has 18446744073709551615 bytes"),
        (Header::new(3, 0, 1).u64(200).0, "truncated"),
        (Header::new(3, 0, 1).text("k").u32(99).file(64), "key k: a value at byte 37 is of type 99"),
        (Header::new(3, 0, 1).text("k").u32(TEXT).u64(u64::MAX).file(64), "key k: truncated"),
        (Header::new(3, 0, 1).text("k").u32(ARRAY).u32(4).u64(u64::MAX).file(64), "an array of 18446744073709551615"),
        (deep.file(64), "more than 4 deep"),
        (Header::new(3, 0, 1).text("general.alignment").u32(4).u32(3).file(64), "an alignment of 3 is no power of two"),
        (Header::new(3, 0, 1).text("split.count").u32(4).u32(2).file(64), "one of 2 parts of a split GGUF file"),
        (one(&[1; 17], F32, 0, 64), "tensor a has 17 axes"),
        (one(&[1 << 40, 1 << 40], F32, 0, 64), "tensor a is larger than any memory"),
        // An empty axis makes the product 0, and not those of the others.
        (one(&[1 << 40, 1 << 40, 0], F32, 0, 64), "tensor a is larger than any memory"),
        (one(&[4], 19, 0, 64), "tensor a is stored as IQ1_S, which can't be read"),
        (one(&[4], 77, 0, 64), "tensor a is of type 77, which is unknown"),
        (one(&[33], Q8_0, 0, 64), "rows of 33 values, which are no whole blocks of Q8_0"),
        (one(&[4], F32, 1, 64), "begins at 1, which is no multiple of 32"),
        (one(&[4], F32, u64::MAX - 31, 64), "no multiple of 32"),
        (one(&[4], F32, 64, 64), "truncated: tensor a ends at byte"),
        (
            Header::new(3, 2, 0).tensor("a", &[16], F32, 0).tensor("b", &[4], F32, 32).file(64),
            "the tensors' bytes overlap at byte",
        ),
        (
            Header::new(3, 2, 0).tensor("a", &[4], F32, 0).tensor("a", &[4], F32, 32).file(64),
            "two tensors are called a",
        ),
        (
            Header::new(3, 1, 1)
                .text("comfy.gguf.orig_shape.a")
                .u32(ARRAY)
                .u32(5)
                .u64(2)
                .u32(3)
                .u32(5)
                .tensor("a", &[16], F32, 0)
                .file(64),
            "tensor a is stored as [16], and was [3, 5]",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (file, words) in cases {
        let path = folder.path().join("x.gguf");
        fs::write(&path, file).unwrap();
        let message = refusal(&path);
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
    // The same header with sound values is read.
    let path = folder.path().join("y.gguf");
    fs::write(&path, one(&[4, 2], F32, 32, 64)).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().shape("a"), Some(&[2, 4][..]));
}

#[test]
fn shapes_that_cannot_be_multiplied_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let header = br#"{"a":{"dtype":"F32","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}}"#;
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header].concat()).unwrap();
    assert!(refusal(&path).contains("tensor a is larger than any memory"));
}

#[test]
fn empty_matrices_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    for shape in ["[1099511627776,0]", "[0,4]"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
        fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
        let message = Checkpoint::open(&path).unwrap().matrix("a").unwrap_err().to_string();
        assert!(message.contains("which is empty"), "{message}");
    }
}

fn one_tensor(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat()
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let index = at("model.safetensors.index.json");
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    fs::write(&index, format!(r#"{{"weight_map":{{"a":"{first}","b":"{second}"}}}}"#)).unwrap();
    fs::write(at(first), one_tensor("a")).unwrap();
    // By the index, and by a shard beside it.
    for path in [index.clone(), at(first)] {
        assert!(refusal(&path).contains(&format!("names the shard {second}, which is missing")));
    }
    fs::write(at(second), one_tensor("c")).unwrap();
    assert!(refusal(&index).contains("tensor b is missing in this shard: it does not belong to"));
    fs::write(at(second), one_tensor("b")).unwrap();
    let file = Checkpoint::open(&at(second)).unwrap();
    assert_eq!((file.names().collect::<Vec<_>>(), file.shards()), (vec!["a", "b"], 2));
    for (text, words) in [
        (r#"{"weight_map":{"a":"../x.safetensors"}}"#, "shards stand beside their index"),
        (r#"{"weight_map":{}}"#, "an index of 0 files"),
        ("[", "no sound index of shards"),
    ] {
        fs::write(&index, text).unwrap();
        assert!(refusal(&index).contains(words), "{words}");
    }
}

#[test]
fn shards_without_an_index_are_taken_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let names: Vec<String> = (1..=12).map(|number| format!("model.fp16-{number:05}-of-00012.safetensors")).collect();
    fs::write(at(&names[4]), one_tensor("t4")).unwrap();
    assert!(
        refusal(&at(&names[4])).contains(&format!("one of 12 shards, of which {} and 10 more are missing", names[0]))
    );
    for (number, name) in names.iter().enumerate() {
        fs::write(at(name), one_tensor(&format!("t{number}"))).unwrap();
    }
    let file = Checkpoint::open(&at(&names[4])).unwrap();
    assert_eq!((file.shards(), file.names().len(), file.path()), (12, 12, at(&names[0]).as_path()));
    assert_eq!(Checkpoint::open_part(folder.path(), &[]).unwrap().shards(), 12);
    assert_eq!(tilewright_checkpoint::files_of(&at(&names[9])), names.iter().map(|name| at(name)).collect::<Vec<_>>());
    // A link that leads nowhere says so, and is not called missing.
    fs::remove_file(at(&names[7])).unwrap();
    std::os::unix::fs::symlink("../blobs/gone", at(&names[7])).unwrap();
    assert!(refusal(&at(&names[4])).contains(&format!("{}: can't be read", at(&names[7]).display())));
    fs::remove_file(at(&names[7])).unwrap();
    fs::write(at(&names[7]), one_tensor("t3")).unwrap();
    assert!(refusal(&at(&names[4])).contains("tensor t3 is in this shard and in"));
    assert_eq!(tilewright_checkpoint::whole_of(&names[4]), Some("model.fp16"));
    // An index of another number of shards does not belong to these.
    let index = at("model.fp16.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"a":"model.fp16-00001-of-00002.safetensors"}}"#).unwrap();
    assert!(refusal(&at(&names[4])).contains("beside it are shards of 12: it is the index of another download"));
    fs::remove_file(&index).unwrap();
    // Names that say nonsense: a shard of none, and more than any model has.
    for name in ["x-00003-of-00002.safetensors", "x-00000-of-00002.safetensors", "x-1-of-.safetensors"] {
        fs::write(at(name), one_tensor("a")).unwrap();
        assert_eq!(Checkpoint::open(&at(name)).unwrap().shards(), 1, "{name}");
    }
    let many = at("y-1-of-99999999999.safetensors");
    fs::write(&many, one_tensor("a")).unwrap();
    assert!(refusal(&many).contains("at most 1024 were expected"));
}
