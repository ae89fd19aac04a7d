//! Two hundred hostile files and more, made by code and a seed: broken, costly, foreign, or not
//! files at all.

use std::{fs, os::unix::net::UnixListener, path::Path, process::Command};

use super::bombs;
use crate::program::{fixture, latent, one_tensor};

/// The role that a file is given in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Latent,
    /// A VAE that decodes.
    Vae,
    /// A VAE that encodes.
    Encoder,
    Picture,
    Clip,
    /// A policy that is looked into.
    Policy,
    /// A policy that decides.
    Planner,
    Records,
    Table,
    History,
    Config,
}

/// A hostile file: its name, its roles, and its content.
pub struct Hostile {
    pub name: String,
    pub given_as: &'static [As],
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    /// These bytes, then a hole up to this length, which takes no disk space.
    Sparse(Vec<u8>, u64),
    Pipe,
    Socket,
    Folder,
    LinkTo(&'static str),
    /// A link to itself.
    Loop,
}

impl Hostile {
    /// True if it is a file, so that a command that is given several goes on behind it.
    pub fn is_file(&self) -> bool {
        matches!(self.content, Content::Bytes(_) | Content::Sparse(..))
    }

    /// True if it may take a large part of the time that one command has.
    pub fn is_large(&self) -> bool {
        matches!(&self.content, Content::Bytes(bytes) if bytes.len() > 2 << 20)
    }

    /// Puts it into a folder; a socket listens as long as the returned listener is held.
    pub fn write(&self, folder: &Path) -> Option<UnixListener> {
        let path = folder.join(&self.name);
        match &self.content {
            Content::Bytes(bytes) => fs::write(path, bytes).unwrap(),
            Content::Sparse(bytes, length) => {
                fs::write(&path, bytes).unwrap();
                fs::File::options().write(true).open(path).unwrap().set_len(*length).unwrap();
            }
            Content::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            Content::Socket => return Some(UnixListener::bind(path).unwrap()),
            Content::Folder => fs::create_dir(path).unwrap(),
            Content::Loop => std::os::unix::fs::symlink(&self.name, path).unwrap(),
            Content::LinkTo(to) => std::os::unix::fs::symlink(to, path).unwrap(),
        }
        None
    }
}

/// Numbers from a seed (Knuth's generator of MMIX).
struct Seed(u64);

impl Seed {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

/// The whole corpus, with videos only if ffmpeg is present to read them.
pub fn all(ffmpeg: bool) -> Vec<Hostile> {
    let mut corpus = Vec::new();
    let mut add = |name: &str, given_as: &'static [As], content: Content| {
        let name = format!("{:03}-{name}", corpus.len());
        corpus.push(Hostile { name, given_as, content });
    };
    damaged(&mut add);
    headers(&mut add);
    sparse(&mut add);
    foreign(&mut add);
    pictures(&mut add);
    if ffmpeg {
        videos(&mut add);
    }
    records(&mut add);
    histories(&mut add);
    no_files(&mut add);
    corpus
}

type Add<'a> = dyn FnMut(&str, &'static [As], Content) + 'a;

/// The VAE of an encode is opened by the same code as that of a decode. Files that fail behind
/// that are given as both, and of those that fail there every third.
const VAE: &[As] = &[As::Vae, As::Encoder];

fn tensors(number: usize) -> &'static [As] {
    if number.is_multiple_of(3) { &[As::Latent, As::Vae, As::Encoder] } else { &[As::Latent, As::Vae] }
}

/// Valid files with bytes changed in their headers, or their ends missing.
fn damaged(add: &mut Add<'_>) {
    let mut seed = Seed(13);
    let originals: [(&str, &'static [As]); 2] =
        [("flux-bfl/latent.safetensors", &[As::Latent]), ("flux-bfl/ae.safetensors", VAE)];
    for (original, given_as) in originals {
        let whole = fs::read(fixture(original)).unwrap();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        for number in 0..18 {
            let mut bytes = whole.clone();
            for _ in 0..=number % 4 {
                let at = if number % 6 == 0 { seed.below(8) } else { 8 + seed.below(header - 8) };
                // Mostly changed digits and names, not broken JSON.
                bytes[at] = match number % 3 {
                    0 => b'0' + seed.below(10) as u8,
                    1 => bytes[at] ^ (1 << seed.below(8)),
                    _ => b"{}[],:\"9-."[seed.below(10)],
                };
            }
            add(
                &format!("changed.{}", if given_as == VAE { "safetensors" } else { "latent" }),
                given_as,
                Content::Bytes(bytes),
            );
        }
        for _ in 0..6 {
            let length = seed.below(whole.len());
            add("cut.safetensors", given_as, Content::Bytes(whole[..length].to_vec()));
        }
    }
}

fn with_header(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Headers that declare much in few bytes.
fn headers(add: &mut Add<'_>) {
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let many = |count: usize, name: &str| {
        let tensors: Vec<String> = (0..count).map(|number| format!(r#""{name}{number}":{empty}"#)).collect();
        format!("{{{}}}", tensors.join(","))
    };
    let axes =
        |count: usize| format!(r#"{{"a":{{"dtype":"F32","shape":[{}0],"data_offsets":[0,0]}}}}"#, "1,".repeat(count));
    let texts = |count: usize| {
        let texts: Vec<String> = (0..count).map(|number| format!(r#""{number}":"""#)).collect();
        format!(r#"{{"__metadata__":{{{}}}}}"#, texts.join(","))
    };
    let of_shape =
        |shape: &str, end: &str| format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}"#);
    let cases = [
        many(400_000, "t"),
        // As many as are allowed, with the names of a network's layers.
        many(65_536, "decoder.up.0.block.0.norm1.weight"),
        many(65_536, "decoder.up_blocks.0.resnets."),
        many(20_000, "decoder.middle."),
        axes(15_000_000),
        axes(17),
        texts(1_000_000),
        texts(4_000),
        format!(r#"{{"__metadata__":{{"workflow":"{}"}}}}"#, "x".repeat(30 << 20)),
        format!(r#"{{"__metadata__":{{"a":{}1{}}}}}"#, "[".repeat(2_000_000), "]".repeat(2_000_000)),
        "[".repeat(8 << 20),
        "{\"a\":".repeat(2 << 20),
        format!("{{\"{}\":{empty}}}", "n".repeat(16 << 20)),
        format!("{{{}}}", vec![format!(r#""a":{empty}"#); 60_000].join(",")),
        of_shape("[18446744073709551615,2]", "0"),
        of_shape("[0,18446744073709551615,18446744073709551615]", "0"),
        of_shape("[4294967296,4294967296]", "18446744073709551615"),
        of_shape("[-1]", "4"),
        of_shape("[1e999]", "4"),
        of_shape("[1.5]", "4"),
        of_shape("[1]", "-4"),
        of_shape(&format!("[{}]", "9".repeat(1_000_000)), "4"),
        of_shape("[1,16,1,0]", "0"),
        "\u{feff}{}".to_owned(),
        "{}".to_owned(),
        "null".to_owned(),
        String::new(),
        r#"{"latent_tensor":{"dtype":"F8_E4M3","shape":[1,16,8,8],"data_offsets":[0,1024]}}"#.to_owned(),
    ];
    for (number, text) in cases.into_iter().enumerate() {
        add("header.safetensors", tensors(number), Content::Bytes(with_header(&text)));
    }
    for (number, length) in [1, 2, 0x7b, 1 << 20, 100_000_000, u64::MAX / 2, u64::MAX].into_iter().enumerate() {
        let bytes = [&length.to_le_bytes()[..], b"{\"a\":", &[b' '; 64]].concat();
        add("length.safetensors", tensors(number), Content::Bytes(bytes));
    }
    // Weights in eight bits, and a VAE without its decoder.
    let rewritten = |change: &dyn Fn(&mut serde_json::Value)| {
        let whole = fs::read(fixture("flux-bfl/ae.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let mut value: serde_json::Value = serde_json::from_slice(&whole[8..header]).unwrap();
        change(&mut value);
        [with_header(&value.to_string()), whole[header..].to_vec()].concat()
    };
    let eight_bits = rewritten(&|value| {
        for (_, tensor) in value.as_object_mut().unwrap().iter_mut().filter(|(name, _)| *name != "__metadata__") {
            tensor["dtype"] = "F8_E4M3".into();
            let last = tensor["shape"].as_array().unwrap().len() - 1;
            tensor["shape"][last] = (tensor["shape"][last].as_u64().unwrap() * 2).into();
        }
    });
    add("eight-bits.safetensors", VAE, Content::Bytes(eight_bits));
    let wide = rewritten(&|value| value["decoder.conv_in.weight"]["shape"][0] = u64::MAX.into());
    add("wide.safetensors", VAE, Content::Bytes(wide));
    // Values that are no numbers, and a size in no proportion to the file.
    add("nan.latent", &[As::Latent], Content::Bytes(latent(&[1, 16, 64, 64], f32::NAN)));
    add("side.latent", &[As::Latent], Content::Bytes(latent(&[1, 16, 1, 20_000], 0.5)));
    add("batch.latent", &[As::Latent], Content::Bytes(latent(&[70_000, 16, 1, 1], 0.5)));
    add("integers.latent", &[As::Latent], Content::Bytes(one_tensor("latents", "I64", &[1, 16, 1, 1], &[0; 128])));
}

/// Large files, as their headers say, but sparse.
fn sparse(add: &mut Add<'_>) {
    let of = |name: &str, shape: &[u64]| {
        let bytes = shape.iter().product::<u64>() * 4;
        let text = format!(r#"{{"{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[0,{bytes}]}}}}"#);
        let header = with_header(&text);
        let length = header.len() as u64 + bytes;
        Content::Sparse(header, length)
    };
    // Thirty gigabytes each: with the right channels, with others, of a clip, of many samples.
    let large = [
        ("30-gib.safetensors", of("decoder.conv_in.weight", &[60_000, 16, 90, 90])),
        ("30-gib.latent", of("latent_tensor", &[1, 16, 22_000, 22_000])),
        ("30-gib.latent", of("latent_tensor", &[1, 4, 44_000, 44_000])),
        ("30-gib.latent", of("latents", &[1, 16, 60_000, 90, 90])),
        ("30-gib.latent", of("latents", &[60_000, 16, 90, 90])),
        ("nothing.safetensors", Content::Sparse(Vec::new(), 30 << 30)),
        ("header.safetensors", Content::Sparse(with_header("{"), 30 << 30)),
    ];
    for (number, (name, content)) in large.into_iter().enumerate() {
        add(name, tensors(number), content);
    }
    add("photo.jpg", &[As::Picture], Content::Sparse(b"\xff\xd8\xff\xe0".to_vec(), 30 << 30));
    add(
        "photo.webp",
        &[As::Picture],
        Content::Sparse(b"RIFF\xff\xff\xff\xffWEBPVP8 \xff\xff\xff\xff".to_vec(), 30 << 30),
    );
    add("photo.gif", &[As::Picture], Content::Sparse(b"GIF89a\x10\0\x10\0\0\0\0".to_vec(), 30 << 30));
    add("frames.safetensors", &[As::Clip], of("sample", &[1, 3, 60_000, 200, 200]));
}

/// Files that people mistake for others.
fn foreign(add: &mut Add<'_>) {
    let starts: [&[u8]; 30] = [
        b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl",
        b"PK\x03\x04 of holiday pictures",
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"<!DOCTYPE html><html><title>Sign in</title>",
        b"{\"error\":\"Access to model is restricted\"}",
        b"[{\"a\": 1}]",
        b"\0\0\0\x20ftypisom\0\0\x02\0",
        b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x23",
        b"\x1f\x8b\x08\0\0\0\0\0",
        b"\x28\xb5\x2f\xfd\0\0",
        b"\xfd7zXZ\0\0",
        b"7z\xbc\xaf\x27\x1c\0\x04",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\xff\xd8\xff\xe0\0\x10JFIF",
        b"RIFF\xff\xff\xff\xffAVI LIST",
        b"\0asm\x01\0\0\0",
        b"\0asm\x0d\0\x01\0\xff\xff\xff\xff",
        b"SQLite format 3\0",
        b"\x7fELF\x02\x01\x01",
        b"#!/bin/sh\necho pwned > left-behind\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 334643276\n",
        b"\x93NUMPY\x01\0v\0",
        b"\x89HDF\r\n\x1a\n",
        b"%PDF-1.7",
        b"hello",
        b"\x1b]0;owned\x07\x1b[2J",
        b"",
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    for (number, start) in starts.into_iter().enumerate() {
        // A decode opens its policy as `policy inspect` does, and ends there if it is no module.
        let given_as: &[As] = match () {
            () if start.starts_with(b"\0asm") => &[As::Latent, As::Vae, As::Policy, As::Planner],
            () if number.is_multiple_of(6) => &[As::Latent, As::Vae, As::Encoder, As::Policy, As::Planner],
            () if number.is_multiple_of(3) => &[As::Latent, As::Vae, As::Encoder, As::Policy],
            () => &[As::Latent, As::Vae, As::Policy],
        };
        add("foreign.bin", given_as, Content::Bytes(start.to_vec()));
    }
}

fn pictures(add: &mut Add<'_>) {
    const PICTURE: &[As] = &[As::Picture];
    for (name, bytes) in bombs::large().into_iter().chain(bombs::packed()).chain(bombs::others()) {
        add(name, PICTURE, Content::Bytes(bytes));
    }
    // Valid pictures with bytes changed.
    let mut seed = Seed(7);
    let small = image::RgbImage::from_fn(48, 32, |x, y| image::Rgb([x as u8 * 5, y as u8 * 7, 99]));
    for (ending, format) in
        [("png", image::ImageFormat::Png), ("jpg", image::ImageFormat::Jpeg), ("webp", image::ImageFormat::WebP)]
    {
        let mut whole = std::io::Cursor::new(Vec::new());
        small.write_to(&mut whole, format).unwrap();
        let whole = whole.into_inner();
        for _ in 0..5 {
            let mut bytes = whole.clone();
            (0..4).for_each(|_| {
                let at = seed.below(bytes.len());
                bytes[at] ^= 1 << seed.below(8);
            });
            add(&format!("changed.{ending}"), PICTURE, Content::Bytes(bytes));
        }
        add(&format!("cut.{ending}"), PICTURE, Content::Bytes(whole[..whole.len() / 2].to_vec()));
    }
    // One kind under the name of another.
    add("latent.png", PICTURE, Content::Bytes(latent(&[1, 16, 8, 8], 0.5)));
    add("page.jpg", PICTURE, Content::Bytes(b"<html>".to_vec()));
}

fn videos(add: &mut Add<'_>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mp4");
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=8:duration=1"]).arg(&path);
    assert!(command.status().unwrap().success());
    let whole = fs::read(&path).unwrap();
    let mut seed = Seed(3);
    for _ in 0..4 {
        let mut bytes = whole.clone();
        (0..8).for_each(|_| {
            let at = seed.below(bytes.len());
            bytes[at] = seed.below(256) as u8;
        });
        add("changed.mp4", &[As::Clip], Content::Bytes(bytes));
    }
    add("cut.mp4", &[As::Clip], Content::Bytes(whole[..whole.len() / 2].to_vec()));
    add("sparse.mp4", &[As::Clip], Content::Sparse(whole[..64].to_vec(), 30 << 30));
    add("playlist.mp4", &[As::Clip], Content::Bytes(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n".to_vec()));
}

fn records(add: &mut Add<'_>) {
    const RECORDS: &[As] = &[As::Records, As::Table, As::Config];
    let texts = [
        "{\"tilewright\":".repeat(100_000),
        "[".repeat(4 << 20),
        format!("{{\"tilewright\":\"{}\"}}", "x".repeat(20 << 20)),
        "\n".repeat(4 << 20),
        "{}\n".repeat(100_000),
        "null".to_owned(),
        "\u{1b}[2J\u{1b}]0;x\u{7}\n".to_owned(),
        format!("a = {}", "[".repeat(1 << 19)),
        format!("{}\n", "[a]\n".repeat(100_000)),
        "a.".repeat(1 << 18) + "b = 1",
    ];
    for text in texts {
        add("records.jsonl", RECORDS, Content::Bytes(text.into_bytes()));
    }
    add("records.jsonl", RECORDS, Content::Sparse(Vec::new(), 30 << 30));
    add("binary.jsonl", RECORDS, Content::Bytes(vec![0xff; 4096]));
}

fn histories(add: &mut Add<'_>) {
    const HISTORY: &[As] = &[As::History];
    add("history.sqlite", HISTORY, Content::Bytes(b"no database: ".repeat(1000)));
    add("history.sqlite", HISTORY, Content::Bytes([&b"SQLite format 3\0"[..], &[0xff; 4080]].concat()));
    add("history.sqlite", HISTORY, Content::Sparse(Vec::new(), 1 << 40));
    add("history.sqlite", HISTORY, Content::Sparse(b"SQLite format 3\0\x10\0\x01\x01\0\x40\x20\x20".to_vec(), 1 << 29));
    add("history.sqlite", HISTORY, Content::Bytes(latent(&[1, 16, 8, 8], 0.5)));
}

/// Paths that are not files, given in every role: to files that are read whole, those alone that
/// would be waited for, be read without end, or be a folder.
fn no_files(add: &mut Add<'_>) {
    const ANYTHING: &[As] = &[
        As::Latent,
        As::Vae,
        As::Encoder,
        As::Picture,
        As::Clip,
        As::Policy,
        As::Planner,
        As::Records,
        As::Table,
        As::History,
        As::Config,
    ];
    const MOST: &[As] = &[As::Latent, As::Vae, As::Picture, As::Clip, As::Policy, As::History];
    add("pipe.png", ANYTHING, Content::Pipe);
    add("pipe.mp4", &[As::Clip], Content::Pipe);
    add("socket.png", MOST, Content::Socket);
    add("folder", ANYTHING, Content::Folder);
    add("zero.png", ANYTHING, Content::LinkTo("/dev/zero"));
    add("full.png", MOST, Content::LinkTo("/dev/full"));
    add("loop.png", MOST, Content::Loop);
    add("nowhere.png", MOST, Content::LinkTo("nowhere-at-all"));
    add("memory.png", MOST, Content::LinkTo("/proc/self/mem"));
}
