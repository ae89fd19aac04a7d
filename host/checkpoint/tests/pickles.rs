//! Files of `torch.save`: the tensors that torch reads from them, to the last bit, and files that
//! lie, run code, or are built to exhaust memory, each refused in one line.

use std::{fs, path::PathBuf};

use tilewright_checkpoint::{Checkpoint, Container, Stored};
use tilewright_fixtures::fixture;

fn stored(name: &str) -> PathBuf {
    fixture("pickles").join(name)
}

#[test]
fn tensors_are_those_that_torch_reads() {
    let mut types = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(stored("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "pth") {
            continue;
        }
        let file = Checkpoint::open(&path).unwrap();
        let expected = Checkpoint::open(&path.with_extension("safetensors")).unwrap();
        assert_eq!(file.container(), Container::Pickle);
        assert_eq!(file.names().collect::<Vec<_>>(), expected.names().collect::<Vec<_>>(), "{}", path.display());
        for name in file.names() {
            let words = format!("{} {name}", path.display());
            assert_eq!(file.shape(name), expected.shape(name), "{words}");
            assert_eq!(file.find_stored(name), expected.find_stored(name), "{words}");
            assert_eq!(file.bytes(name), expected.bytes(name), "{words}");
            assert_eq!(file.shared_bytes(name).unwrap().as_slice(), file.bytes(name).unwrap(), "{words}");
            types.extend(file.find_stored(name));
        }
        count += 1;
    }
    types.sort_unstable();
    types.dedup();
    assert_eq!((count, types.len()), (14, 17), "{types:?}");
}

#[test]
fn shards_are_pickles_as_well() {
    let folder = Folder::new();
    let at = |name: &str| folder.0.path().join(name);
    let names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"];
    for (name, own) in [("alone.pth", names[0]), ("levels.pth", names[1])] {
        fs::copy(stored(name), at(own)).unwrap();
    }
    let index = at("pytorch_model.bin.index.json");
    // By their names, and then by an index.
    for _ in 0..2 {
        for path in [at(names[0]), at(names[1])] {
            let file = Checkpoint::open(&path).unwrap();
            assert_eq!((file.names().collect::<Vec<_>>(), file.shards()), (vec!["a.weight", "tensor"], 2));
        }
        assert_eq!(Checkpoint::open_part(folder.0.path(), &[]).unwrap().shards(), 2);
        let text = format!(r#"{{"weight_map":{{"tensor":"{}","a.weight":"{}"}}}}"#, names[0], names[1]);
        fs::write(&index, text).unwrap();
    }
    assert_eq!(Checkpoint::open(&index).unwrap().shards(), 2);
    fs::remove_file(at(names[1])).unwrap();
    let message = Checkpoint::open(&index).unwrap_err().to_string();
    assert!(message.contains(&format!("names the shard {}, which is missing", names[1])), "{message}");
}

/// An entry of an archive, with the fields that may lie.
#[derive(Clone)]
struct Part {
    name: String,
    contents: Vec<u8>,
    flags: u16,
    method: u16,
    size: Option<u32>,
    offset: Option<u32>,
    own_name: Option<String>,
}

fn part(name: &str, contents: &[u8]) -> Part {
    let (name, contents) = (name.to_owned(), contents.to_vec());
    Part { name, contents, flags: 0, method: 0, size: None, offset: None, own_name: None }
}

/// An archive of these entries.
fn archive(parts: &[Part]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    let number = |to: &mut Vec<u8>, value: u32, width: usize| to.extend(&value.to_le_bytes()[..width]);
    for Part { name, contents, flags, method, size, offset, own_name } in parts {
        let at = offset.unwrap_or(file.len() as u32);
        let size = size.unwrap_or(contents.len() as u32);
        let own = own_name.as_ref().unwrap_or(name);
        file.extend(b"PK\x03\x04");
        for (value, width) in
            [(20, 2), ((*flags).into(), 2), ((*method).into(), 2), (0, 4), (0, 4), (size, 4), (size, 4)]
        {
            number(&mut file, value, width);
        }
        number(&mut file, own.len() as u32, 2);
        number(&mut file, 0, 2);
        file.extend(own.as_bytes());
        file.extend(contents);
        directory.extend(b"PK\x01\x02");
        for (value, width) in [
            (20, 2),
            (20, 2),
            ((*flags).into(), 2),
            ((*method).into(), 2),
            (0, 4),
            (0, 4),
            (contents.len() as u32, 4),
            (size, 4),
            (name.len() as u32, 2),
            (0, 2),
            (0, 2),
            (0, 2),
            (0, 2),
            (0, 4),
            (at, 4),
        ] {
            number(&mut directory, value, width);
        }
        directory.extend(name.as_bytes());
    }
    let start = file.len() as u32;
    file.extend(&directory);
    file.extend(b"PK\x05\x06");
    for (value, width) in [
        (0, 2),
        (0, 2),
        (parts.len() as u32, 2),
        (parts.len() as u32, 2),
        (directory.len() as u32, 4),
        (start, 4),
        (0, 2),
    ] {
        number(&mut file, value, width);
    }
    file
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn number(number: i32) -> Vec<u8> {
    [&b"J"[..], &number.to_le_bytes()[..]].concat()
}

fn numbers(all: &[i32]) -> Vec<u8> {
    let each: Vec<u8> = all.iter().flat_map(|of| number(*of)).collect();
    [&b"("[..], &each[..], b"t"].concat()
}

/// A tensor of a storage `0` of `elements` elements.
fn tensor(class: &str, elements: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Vec<u8> {
    let storage = [
        &b"("[..],
        &text("storage"),
        format!("ctorch\n{class}\n").as_bytes(),
        &text("0"),
        &text("cpu"),
        &number(elements),
        b"tQ",
    ]
    .concat();
    [
        &b"ctorch._utils\n_rebuild_tensor_v2\n("[..],
        &storage,
        &number(offset),
        &numbers(shape),
        &numbers(strides),
        b"\x89)tR",
    ]
    .concat()
}

fn dict(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let each: Vec<u8> = items.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [&b"}("[..], &each[..], b"u"].concat()
}

/// A whole pickle of an object.
fn pickle(object: &[u8]) -> Vec<u8> {
    [&b"\x80\x02"[..], object, b"."].concat()
}

/// An archive of an object and a storage `0` of `bytes` bytes.
fn saved(object: &[u8], bytes: usize) -> Vec<u8> {
    archive(&[part("x/data.pkl", &pickle(object)), part("x/data/0", &vec![1; bytes])])
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, file: &[u8]) -> Result<Checkpoint, String> {
        let path = self.0.path().join("x.pth");
        fs::write(&path, file).unwrap();
        Checkpoint::open(&path).map_err(|error| error.to_string())
    }
}

#[test]
fn archives_and_pickles_that_lie_are_refused_in_one_line() {
    let folder = Folder::new();
    let sound = |shape: &[i32], strides: &[i32]| dict(&[("a", tensor("FloatStorage", 4, 0, shape, strides))]);
    let file = folder.open(&saved(&sound(&[2, 2], &[2, 1]), 16)).unwrap();
    assert_eq!((file.shape("a"), file.find_stored("a")), (Some(&[2, 2][..]), Some(Stored::F32)));
    assert_eq!(file.bytes("a"), Some(&[1; 16][..]));
    let one = |change: &dyn Fn(&mut Part)| {
        let mut parts =
            [part("x/data.pkl", &pickle(&sound(&[4], &[1]))), part("x/data/0", &[1; 16]), part("x/version", b"3")];
        change(&mut parts[1]);
        archive(&parts)
    };
    let whole = one(&|_| {});
    let of = |object: &[u8]| saved(object, 16);
    let unpickled = |bytes: &[u8]| archive(&[part("x/data.pkl", bytes)]);
    let called = |name: &str| of(&[format!("c{name}\n").replace('.', "\n").as_bytes(), b")R"].concat());
    let nested = (0..40).fold(tensor("FloatStorage", 4, 0, &[4], &[1]), |inner, _| dict(&[("k", inner)]));
    // A long tuple, made into a size time and again.
    let again = b"h\x01h\x02R0".repeat(100);
    let copies = [&b"ctorch\nSize\nq\x01("[..], &b"N".repeat(50_000), b"t\x85q\x02", &again, b"."].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        // The archive.
        (whole[..whole.len() - 1].to_vec(), "truncated: a zip archive without the directory at its end"),
        (one(&|part| part.method = 8), "entry x/data/0 of the zip archive is compressed"),
        (one(&|part| part.flags = 1), "entry x/data/0 of the zip archive is encrypted"),
        (one(&|part| part.size = Some(17)), "is compressed"),
        (one(&|part| part.offset = Some(0)), "entry x/data/0 is called otherwise in its own header"),
        (one(&|part| part.offset = Some(1 << 30)), "entry x/data/0 goes beyond the archive"),
        (one(&|part| part.offset = Some(u32::MAX)), "entry x/data/0 lacks its 64-bit sizes"),
        (one(&|part| part.own_name = Some("y".into())), "is called otherwise"),
        (one(&|part| part.name = "x/data.pkl".into()), "two entries are called x/data.pkl"),
        (one(&|part| part.contents.clear()), "storage 0 has 0 bytes, and its pickle announces 4 elements"),
        (one(&|part| *part = self::part("x/data/1", &[1; 16])), "the archive lacks its entry data/0"),
        (archive(&[part("x/data.pkl", &pickle(&sound(&[4], &[1]))), part("x/constants.pkl", b".")]), "TorchScript"),
        (
            archive(&[part("x/data.pkl", &pickle(&sound(&[4], &[1]))), part("x/byteorder", b"big")]),
            "written on a big-endian machine",
        ),
        // Names.
        (of(b"cposix\nsystem\nX\x02\0\0\0ls\x85R"), "posix.system is not read: of a pickle only tensors, dicts"),
        (called("builtins.eval"), "builtins.eval is not read"),
        (called("__builtin__.getattr"), "__builtin__.getattr is not read"),
        (called("torch.load"), "torch.load is not read"),
        (called("numpy.ndarray"), "numpy.ndarray is not read"),
        (called("torch.QInt8Storage"), "torch.QInt8Storage is not read"),
        (of(&[&text("os")[..], &text("sys\ntem\x1b"), b"\x93"].concat()), "os.sys\\ntem\\u{1b} is not read"),
        (of(b"ctorch\nTensor\n)\x81"), "a call at byte"),
        (of(b"cpytorch_lightning.callbacks.model_checkpoint\nModelCheckpoint\n)\x81"), "a call at byte"),
        (of(&copies), "whose calls copy more than 4194304 items"),
        (of(b"ctorch\nFloatStorage\n)R"), "a call at byte"),
        (of(b"\x82\x01"), "instruction 0x82 at byte 2 of its pickle is not read"),
        (of(b"I1\n"), "instruction 0x49"),
        // The machine.
        (unpickled(b""), "truncated: its pickle ends within byte 0"),
        (unpickled(b"\x80\x02}"), "truncated: its pickle ends within byte 3"),
        (unpickled(b"\x80\x02."), "takes a value from an empty stack"),
        (unpickled(b"\x80\x02(."), "takes a value from an empty stack"),
        (unpickled(b"\x80\x02]e."), "needs a mark"),
        (unpickled(b"\x80\x02h\x07."), "recalls nothing"),
        (unpickled(b"\x80\x02X\xff\xff\xff\x7f"), "truncated"),
        (unpickled(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "truncated"),
        (unpickled(b"\x80\x02X\x01\0\0\0\xff."), "a text at byte 7 of the pickle is no UTF-8"),
        (unpickled(b"\x80\x02cno end"), "has no end"),
        (unpickled(b"\x80\x02}K\x01a."), "adds to something that is no list"),
        (unpickled(b"\x80\x02]K\x01K\x02s."), "adds to something that is no dict"),
        (unpickled(b"\x80\x02K\x01}b."), "gives attributes to a plain value"),
        (unpickled(b"\x80\x02}(K\x01u."), "a key without a value"),
        (unpickled(b"\x80\x02K\x01Q."), "a reference to something that is no storage"),
        (unpickled(b"\x80\x02}."), "a pickle without tensors"),
        // A list that holds itself, and a dict below itself.
        (unpickled(b"\x80\x02]q\x00h\x00a."), "a pickle without tensors"),
        (unpickled(b"\x80\x02}q\x00K\x01h\x00s."), "a pickle without tensors"),
        (of(&nested), "a pickle without tensors"),
        // Tensors.
        (of(&sound(&[5], &[1])), "tensor a of shape [5] goes beyond its storage 0 of 16 bytes"),
        (of(&sound(&[2, 2], &[3, 1])), "goes beyond its storage"),
        (of(&sound(&[2, 2], &[1])), "tensor a has 2 axes and 1 strides"),
        (of(&sound(&[-1], &[1])), "is not described as torch.save does"),
        (of(&sound(&[4], &[-1])), "is not described as torch.save does"),
        (of(&sound(&[i32::MAX, i32::MAX, i32::MAX], &[0, 0, 0])), "tensor a is larger than any memory"),
        (of(&sound(&[1 << 20], &[0])), "tensors repeat values of their storages"),
        (of(&dict(&[("a", tensor("FloatStorage", 4, 3, &[2], &[1]))])), "goes beyond its storage"),
        (of(&dict(&[("a", tensor("FloatStorage", i32::MAX, 0, &[2], &[1]))])), "announces 2147483647 elements"),
        (of(&dict(&[("a", tensor("float32", 4, 0, &[2], &[1]))])), "a reference to something that is no storage"),
    ];
    for (file, words) in cases {
        let message = folder.open(&file).map(drop).expect_err(words);
        assert!(message.contains(words) && !message.contains('\n'), "{message:?} lacks {words:?}");
    }
}

#[test]
fn bombs_are_refused_before_they_take_memory() {
    let folder = Folder::new();
    // A dict whose every key leads to the same dict, level by level: 26^12 tensors.
    let leaf = dict(&[("a", tensor("FloatStorage", 4, 0, &[4], &[1]))]);
    let mut object = [&leaf[..], b"q\x00"].concat();
    for level in 0..12_u8 {
        let each: Vec<u8> = (b'a'..=b'z').flat_map(|key| [&b"X\x01\0\0\0"[..], &[key, b'h', level]].concat()).collect();
        object.extend([&b"}("[..], &each[..], b"uq", &[level + 1]].concat());
    }
    let message = folder.open(&saved(&object, 16)).unwrap_err();
    assert!(message.contains("a pickle of more than 1048576 values"), "{message}");
    let lists = archive(&[part("x/data.pkl", &vec![b']'; 5 << 20])]);
    let message = folder.open(&lists).unwrap_err();
    assert!(message.contains("a pickle of more than 4194304 instructions"), "{message}");
    // Twice as many names at each level, of 4 KiB.
    let long = text(&"k".repeat(1 << 12));
    let mut object = [&leaf[..], b"q\x00"].concat();
    for level in 0..12_u8 {
        let pair = [&long[..], &[b'h', level], &text("b"), &[b'h', level]].concat();
        object.extend([&b"}("[..], &pair[..], b"uq", &[level + 1]].concat());
    }
    let message = folder.open(&saved(&object, 16)).unwrap_err();
    assert!(message.contains("bytes of names"), "{message}");
    // A key of a megabyte that is recalled a hundred thousand times: no weight is called so.
    let long = [&text(&"k".repeat(1 << 20))[..], b"q\x01N}("].concat();
    let object = [&long[..], &b"h\x01N".repeat(100_000), b"u"].concat();
    let message = folder.open(&saved(&object, 16)).unwrap_err();
    assert!(message.contains("a pickle without tensors"), "{message}");
    // A tensor of a million axes.
    let axes = vec![1; 1 << 20];
    let object = dict(&[("a", tensor("FloatStorage", 4, 0, &axes, &axes))]);
    let message = folder.open(&saved(&object, 16)).unwrap_err();
    assert!(message.contains("a tensor at byte"), "{message}");
}

#[test]
fn files_from_before_archives_that_lie_are_refused() {
    let folder = Folder::new();
    let whole = fs::read(stored("strided-legacy.pth")).unwrap();
    for (length, words) in [
        (whole.len() - 1, "truncated: storage"),
        (whole.len() - 200, "truncated: storage"),
        (60, "truncated: its pickle ends within byte"),
        (15, "truncated: its pickle ends within byte"),
    ] {
        let message = folder.open(&whole[..length]).unwrap_err();
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
    }
    for (file, words) in [
        (pickle(b"}"), "a Python pickle that torch.save has not written"),
        ([&whole[..15], &pickle(b"K\x07")[..]].concat(), "another version of torch.save's format"),
    ] {
        let message = folder.open(&file).unwrap_err();
        assert!(message.contains(words), "{message} lacks {words}");
    }
}

/// Marsaglia's xorshift: the same numbers on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn changed_bytes_never_lead_beyond_the_file() {
    let folder = Folder::new();
    let (mut numbers, mut read, mut refused) = (Numbers(0x9e37_79b9_7f4a_7c15), 0, 0);
    for name in ["types.pth", "module.pth", "module-legacy.pth", "strided.pth", "strided-legacy.pth"] {
        let whole = fs::read(stored(name)).unwrap();
        for _ in 0..400 {
            let mut file = whole.clone();
            for _ in 0..=numbers.below(4) {
                let at = numbers.below(file.len());
                match numbers.below(5) {
                    0 => file[at] = numbers.below(256) as u8,
                    1 => file[at] ^= 1 << numbers.below(8),
                    2 => drop(file.drain(at..(at + 1 + numbers.below(16)).min(file.len()))),
                    3 => file.insert(at, [0xff, 0, b'.', b'(', b'R'][numbers.below(5)]),
                    _ => {
                        let from = numbers.below(file.len());
                        let copied = file[from..(from + 1 + numbers.below(32)).min(file.len())].to_vec();
                        file.splice(at..at, copied);
                    }
                }
                if file.is_empty() {
                    break;
                }
            }
            match folder.open(&file) {
                Ok(opened) => {
                    let lengths = opened.names().map(|name| opened.bytes(name).unwrap().len());
                    assert!(lengths.max().unwrap_or_default() <= file.len());
                    read += 1;
                }
                Err(message) => {
                    assert!(!message.contains('\n'), "{message:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}

#[test]
fn a_pickle_whose_end_never_arrived_says_so() {
    let folder = Folder::new();
    let file = |bytes| {
        saved(&dict(&[("a.weight", tensor("FloatStorage", bytes / 4, 0, &[64, 64], &[64, 1]))]), bytes as usize)
    };
    let mut broken = file(1 << 14);
    let length = broken.len();
    broken[9000..].fill(0);
    let message = folder.open(&broken).unwrap_err();
    assert!(message.contains("all bytes from byte 9000 on are zero: the download broke off"), "{message} {length}");
    // The description comes first in the older format.
    let folder = Folder::new();
    let mut whole = fs::read(stored("module-legacy.pth")).unwrap();
    whole.truncate(2000);
    whole.resize(8000, 0);
    let message = folder.open(&whole).unwrap_err();
    assert!(message.contains("the download broke off"), "{message}");
}
