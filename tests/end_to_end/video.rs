//! Clips: agreement with the references, every format, what is refused, and what is left when a
//! decode fails.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use image::{AnimationDecoder, codecs::gif::GifDecoder, codecs::webp::WebPDecoder};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::program::{Place, Run, bundled, cut, fixture, largest_difference, latent, root, sample, texts};

const WHOLE: [&str; 4] = ["--policy", "fixed", "--set", "space=whole"];

/// The bundled video model.
pub fn model() -> String {
    root().join("examples/models/wan-tiny/Wan2.1_VAE.safetensors").display().to_string()
}

/// The bundled video latent and its model: 17 frames of 192×128.
fn shapes() -> [String; 3] {
    [root().join("examples/latents/shapes.latent").display().to_string(), "--vae".into(), model()]
}

/// The middle of that latent, 17 frames of 64×96, and its model: for tests that decode more than
/// once.
pub fn smaller(place: &Place) -> [String; 3] {
    let [latent, option, model] = shapes();
    [cut(place, &latent, 12, 8), option, model]
}

/// 17 frames of 16×24, decoded in a moment.
pub fn small() -> [String; 3] {
    [fixture("wan21-original-17/latent.safetensors"), "--vae".into(), fixture("wan21-original/Wan2.1_VAE.safetensors")]
}

/// Two clips of 5 frames of 24×16.
fn pair() -> [String; 3] {
    [
        fixture("wan21-diffusers/latent.safetensors"),
        "--vae".into(),
        fixture("wan21-diffusers/diffusion_pytorch_model.safetensors"),
    ]
}

/// True if ffmpeg is to be tested; without it tests fail, unless `TILEWRIGHT_WITHOUT_FFMPEG` is
/// set.
pub fn ffmpeg() -> bool {
    let without = std::env::var_os("TILEWRIGHT_WITHOUT_FFMPEG").is_some();
    if without {
        println!("not tested: TILEWRIGHT_WITHOUT_FFMPEG is set");
    }
    !without
}

/// The program about to be run where it can find ffmpeg: otherwise it has no PATH in these tests.
pub fn with_path<S: AsRef<str>>(place: &Place, arguments: &[S]) -> Command {
    let mut command = place.command(arguments);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn decode(place: &Place, inputs: &[String], options: &[&str]) -> Run {
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    Run(with_path(place, &[&["decode"], &inputs[..], &["--device", "cpu"], options].concat()).output().unwrap())
}

/// Width, height, rate and count of a video's frames.
fn probed(path: &Path) -> String {
    let mut command = Command::new("ffprobe");
    command.args(["-v", "error", "-count_frames", "-select_streams", "v"]);
    command.args(["-show_entries", "stream=width,height,r_frame_rate,nb_read_frames", "-of", "csv=p=0"]).arg(path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A raw clip's frames as files of 8 bits hold them, row by row: red, green, blue.
fn pixels(path: &Path) -> Vec<Vec<u8>> {
    let (shape, values) = sample(path);
    let [samples, channels, frames, height, width] = shape[..] else { panic!("{shape:?}") };
    assert_eq!((samples, channels), (1, 3));
    let area = height * width;
    let value = |channel: usize, frame: usize, pixel: usize| {
        (values[(channel * frames + frame) * area + pixel] * 127.5 + 127.5).round_ties_even().clamp(0.0, 255.0) as u8
    };
    (0..frames)
        .map(|frame| {
            (0..area)
                .flat_map(|pixel| (0..3).map(move |channel| (channel, pixel)))
                .map(|(c, p)| value(c, frame, p))
                .collect()
        })
        .collect()
}

fn picture(path: &Path) -> Vec<u8> {
    image::open(path).unwrap().to_rgb8().into_raw()
}

fn frame_names(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("frame-{number:06}.png")).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_clip_agrees_with_diffusers() {
    let all: Value = serde_json::from_str(&fs::read_to_string(fixture("video_cases.json")).unwrap()).unwrap();
    let tolerance = all["tolerance"].as_f64().unwrap() as f32;
    let cases = all["cases"].as_array().unwrap();
    assert!(cases.len() > 15);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let text = |key: &str| fixture(case[key].as_str().unwrap());
        let place = Place::new();
        let mut options = [&WHOLE[..], &["--set", "precision=f32", "-o", "raw.safetensors"]].concat();
        if case["scaled"].as_bool().unwrap() {
            options.push("--scaled");
        }
        decode(&place, &[text("latent"), "--vae".into(), text("vae")], &options).succeeded();
        assert_eq!(place.files(), ["raw.safetensors"]);
        let (shape, found) = place.sample("raw.safetensors");
        let (expected_shape, expected) = sample(text("reference").as_ref());
        assert_eq!(shape, expected_shape, "{name}");
        let difference = largest_difference(&found, &expected);
        assert!(difference <= tolerance, "{name}: {difference}");
    }
}

#[test]
fn videos_have_the_frames_size_and_rate() {
    if !ffmpeg() {
        return;
    }
    let place = Place::new();
    for (name, options, expected) in [
        ("a.mp4", &[][..], "16,24,16/1,17"),
        ("a.mkv", &["--fps", "24"], "16,24,24/1,17"),
        ("a.webm", &["--fps", "30000/1001"], "16,24,30000/1001,17"),
        ("b.mp4", &["--fps", "23.976"], "16,24,24000/1001,17"),
    ] {
        decode(&place, &small(), &[options, &["-o", name]].concat()).succeeded();
        assert_eq!(probed(&place.path(name)), expected, "{name}");
    }
    // WAN 2.2 is made for 24 frames per second.
    let wan22 = [
        fixture("wan22-original-scaled/latent.safetensors"),
        "--vae".into(),
        fixture("wan22-original/Wan2.2_VAE.safetensors"),
    ];
    decode(&place, &wan22, &["--scaled", "-o", "c.mp4"]).succeeded();
    assert_eq!(probed(&place.path("c.mp4")), "16,32,24/1,9");
}

#[test]
fn a_video_shows_what_was_decoded() {
    if !ffmpeg() {
        return;
    }
    let place = Place::new();
    decode(&place, &shapes(), &[&WHOLE[..], &["-o", "shapes.mp4"]].concat()).succeeded();
    decode(&place, &shapes(), &[&WHOLE[..], &["-o", "raw.safetensors"]].concat()).succeeded();
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-i"]).arg(place.path("shapes.mp4"));
    let shown = command.args(["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]).output().unwrap().stdout;
    let expected = pixels(&place.path("raw.safetensors")).concat();
    assert_eq!(shown.len(), expected.len());
    let squares: f64 = shown.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let decibels = 10.0 * (255.0 * 255.0 / (squares / shown.len() as f64)).log10();
    // Half of the colours' resolution and a quantizer lie between.
    assert!(decibels > 32.0, "{decibels} dB");
    // ComfyUI's workflow goes along.
    let mut command = Command::new("ffprobe");
    command.args(["-v", "error", "-show_entries", "format_tags=prompt", "-of", "csv=p=0"]);
    let tags = command.arg(place.path("shapes.mp4")).output().unwrap().stdout;
    assert!(String::from_utf8(tags).unwrap().contains("SaveLatent"));
}

#[test]
fn folders_and_animations_hold_the_decoded_frames() {
    let place = Place::new();
    let to = |name: &str, more: &[&str]| {
        decode(&place, &small(), &[&WHOLE[..], &["-o", name], more].concat()).succeeded();
    };
    to("raw.safetensors", &[]);
    let expected = pixels(&place.path("raw.safetensors"));
    assert_eq!(expected.len(), 17);

    to("clip/", &[]);
    assert_eq!(names(&place.path("clip")), frame_names(17));
    for (name, expected) in frame_names(17).iter().zip(&expected) {
        assert!(picture(&place.path("clip").join(name)) == *expected, "{name}");
    }
    // Again, into the folder that is there now.
    fs::write(place.path("clip/notes.txt"), "mine").unwrap();
    to("clip", &[]);
    assert_eq!(names(&place.path("clip")), [frame_names(17), vec!["notes.txt".into()]].concat());

    to("clip.webp", &["--fps", "20"]);
    let file = std::io::BufReader::new(fs::File::open(place.path("clip.webp")).unwrap());
    let frames = WebPDecoder::new(file).unwrap().into_frames().collect_frames().unwrap();
    assert_eq!(frames.len(), 17);
    for (frame, expected) in frames.iter().zip(&expected) {
        assert_eq!(frame.delay().numer_denom_ms(), (50, 1));
        assert!(image::DynamicImage::from(frame.buffer().clone()).to_rgb8().into_raw() == *expected);
    }

    to("clip.gif", &["--fps", "20"]);
    let file = std::io::BufReader::new(fs::File::open(place.path("clip.gif")).unwrap());
    let frames = GifDecoder::new(file).unwrap().into_frames().collect_frames().unwrap();
    assert_eq!(frames.len(), 17);
    for (index, frame) in frames.iter().enumerate() {
        assert_eq!(frame.delay().numer_denom_ms(), (50, 1));
        let shown = image::DynamicImage::from(frame.buffer().clone()).to_rgb8().into_raw();
        let apart = |other: &Vec<u8>| shown.iter().zip(other).map(|(a, b)| u32::from(a.abs_diff(*b))).sum::<u32>();
        // In 256 colours it is not the frame, but nearest to it.
        let nearest = (0..17).min_by_key(|&other| apart(&expected[other])).unwrap();
        assert_eq!(nearest, index);
    }
    assert_eq!(place.files(), ["clip", "clip.gif", "clip.webp", "raw.safetensors"]);
}

#[test]
fn a_batch_becomes_numbered_clips_or_one_raw_file() {
    let place = Place::new();
    let mut expected = vec!["raw.safetensors", "x-01", "x-01.gif", "x-02", "x-02.gif"];
    let mut outputs = vec!["raw.safetensors", "x.gif", "x/"];
    if ffmpeg() {
        outputs.push("x.mp4");
        expected = vec!["raw.safetensors", "x-01", "x-01.gif", "x-01.mp4", "x-02", "x-02.gif", "x-02.mp4"];
    }
    for name in outputs {
        decode(&place, &pair(), &[&WHOLE[..], &["-o", name]].concat()).succeeded();
    }
    assert_eq!(place.files(), expected);
    let (shape, values) = place.sample("raw.safetensors");
    assert_eq!(shape, [2, 3, 5, 16, 24]);
    let byte = |value: f32| (value * 127.5 + 127.5).round_ties_even().clamp(0.0, 255.0) as u8;
    for (number, values) in values.chunks(values.len() / 2).enumerate() {
        let folder = place.path(&format!("x-0{}", number + 1));
        assert_eq!(names(&folder), frame_names(5));
        // Frame 4, its first red value.
        assert_eq!(picture(&folder.join("frame-000004.png"))[0], byte(values[3 * 16 * 24]));
    }
    // A batch of single frames from a latent without the axis of frames.
    let flat = [fixture("wan21-original-flat/latent.safetensors"), "--vae".into(), small()[2].clone()];
    let place = Place::new();
    decode(&place, &flat, &["-o", "y.png"]).succeeded();
    assert_eq!(place.files(), ["y-01.png", "y-02.png"]);
}

#[test]
fn the_preview_is_the_first_frame() {
    let place = Place::new();
    let options = ["-o", "clip/", "--preview", "now.png", "--explain-image", "tiles.png", "--explain"];
    let run = decode(&place, &shapes(), &options);
    for file in ["clip/", "now.png", "tiles.png"] {
        assert!(
            run.succeeded().stdout().lines().any(|line| line.starts_with("wrote") && line.ends_with(file)),
            "{file}"
        );
    }
    assert!(run.stdout().contains("considered"), "{}", run.stdout());
    assert_eq!(place.files(), ["clip", "now.png", "tiles.png"]);
    let first = picture(&place.path("clip/frame-000001.png"));
    assert!(picture(&place.path("now.png")) == first);
    assert_eq!(image::open(place.path("tiles.png")).unwrap().to_rgb8().dimensions(), (192, 128));
    assert!(texts(&place.path("now.png")).contains_key("prompt"));
    // Not another frame than the first: the clip moves.
    assert!(picture(&place.path("clip/frame-000017.png")) != first);

    let tiles = ["--policy", "fixed", "--set", "space=blended", "--set", "tile=64", "--set", "overlap=16"];
    decode(&place, &shapes(), &[&tiles[..], &["-o", "x.gif", "--explain-image", "tiles.png"]].concat()).succeeded();
    assert!(picture(&place.path("tiles.png")) != first, "the tiles are drawn");
}

#[test]
fn without_a_name_the_output_has_the_latents() {
    let place = Place::new();
    let image = [fixture("wan21-original-image/latent.safetensors"), "--vae".into(), small()[2].clone()];
    decode(&place, &image, &[]).succeeded();
    assert_eq!(place.files(), ["latent.png"]);
    assert_eq!(image::open(place.path("latent.png")).unwrap().to_rgb8().dimensions(), (48, 72));
    if ffmpeg() {
        decode(&place, &shapes(), &[]).succeeded();
        assert_eq!(place.files(), ["latent.png", "shapes.mp4"]);
    }
}

#[test]
fn records_say_how_a_clip_was_decoded() {
    let schema = fs::read_to_string(root().join("host/plan/record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let checked = |record: &Value| {
        let errors: Vec<String> = schema.iter_errors(record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    };
    let place = Place::new();
    let record = decode(&place, &small(), &["--dry-run", "--json", "-o", "never.gif", "--preview", "never.png"]).json();
    assert_eq!(record["outcome"], Value::Null);
    assert_eq!(record["request"]["frames"], 17);
    assert!(record["estimate"]["peak_bytes"].as_u64().unwrap() > 0);
    checked(&record);
    assert!(place.files().is_empty());

    for policy in ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"] {
        let options = ["--policy", policy, "--json", "-o", "x.gif", "--record", "records.jsonl"];
        let record = decode(&place, &small(), &options).json();
        checked(&record);
        assert!(record["plan"]["time"]["kind"].is_string(), "{policy}: {record}");
        assert_eq!(record["fallback"], Value::Null, "{policy}: {record}");
        assert!(record["outcome"]["peak_bytes"].as_u64().unwrap() > 0, "{policy}: {record}");
    }
    let records = fs::read_to_string(place.path("records.jsonl")).unwrap();
    assert_eq!(records.lines().count(), 5);
    let carried = ["--policy", "fixed", "--set", "time=carried", "--set", "chunk=4", "--json", "-o", "x.gif"];
    let record = decode(&place, &small(), &carried).json();
    assert_eq!(record["plan"]["time"], serde_json::json!({"kind": "carried", "frames": 4}));
    let shown = decode(&place, &small(), &carried[..6]).succeeded().stdout();
    assert!(shown.contains("17 frames"), "{shown}");
}

#[test]
fn a_clip_in_chunks_or_exact_bands_is_the_same_clip() {
    let place = Place::new();
    let inputs = smaller(&place);
    let raw = |settings: &[&str]| {
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        decode(&place, &inputs, &[&["--policy", "fixed", "-o", "raw.safetensors"], &settings[..]].concat()).succeeded();
        place.sample("raw.safetensors").1
    };
    let whole = raw(&["space=whole"]);
    for settings in [&["time=carried", "chunk=4"][..], &["space=exact", "tile=64"]] {
        let difference = largest_difference(&raw(settings), &whole);
        assert!(difference < 1e-4, "{settings:?}: {difference}");
    }
    let blended = raw(&["space=blended", "tile=64", "overlap=16"]);
    assert!(largest_difference(&blended, &whole) > 0.0, "tiles that see no more than themselves differ");
}

#[test]
fn a_limit_holds_or_is_refused_with_the_least_that_serves() {
    let place = Place::new();
    // Scratch of the kernels is the same for every size: a clip of 12x8 needs four fifths of the
    // whole's memory at least where they have wider blocks.
    let [latent, option, model] = shapes();
    let inputs = [cut(&place, &latent, 16, 16), option, model];
    let whole = decode(&place, &inputs, &[&WHOLE[..], &["--json", "-o", "x.gif"]].concat()).json();
    let whole = whole["outcome"]["peak_bytes"].as_u64().unwrap();
    let run = decode(&place, &inputs, &["--memory-limit", "1MiB", "-o", "y.gif"]);
    run.failed(2, "a memory limit of 1.00 MiB is too little for this clip: the least is about ");
    assert_eq!(place.files(), ["middle.safetensors", "x.gif"]);
    // The least that the message names is rounded.
    let least = run.stderr().split("about ").nth(1).unwrap().split(" MiB").next().unwrap().parse::<f64>().unwrap();
    let least = ((least + 0.1) * f64::from(1 << 20)) as u64;
    assert!(least < whole * 3 / 4, "{least} of {whole}");
    for limit in [least, whole * 3 / 4] {
        let text = limit.to_string();
        let options = ["--memory-limit", &text, "--no-history", "--json", "-o", "x.gif"];
        let record = decode(&place, &inputs, &options).json();
        let held = record["outcome"]["peak_bytes"].as_u64().unwrap();
        assert!(held <= limit, "{held} held of {limit}");
    }
}

#[test]
fn what_clips_cannot_be_ends_with_two() {
    let [small, option, vae] = small();
    let [picture, _, picture_vae] = bundled();
    let four = fixture("sd15-diffusers/latent.safetensors");
    let cases: [([&str; 2], &[&str], &str); 19] = [
        ([&small, &picture_vae], &["-o", "x.png"], "it is a video model's"),
        ([&four, &vae], &["-o", "x.gif"], "channels"),
        ([&small, &vae], &["-o", "x.png"], "this format holds one frame, the clip has 17: write .mp4"),
        ([&small, &vae], &["-o", "x.jpg"], "this format holds one frame"),
        ([&small, &vae], &["-o", "x.avi"], "unknown output ending"),
        ([&small, &vae], &["-o", "missing/x.gif"], "missing"),
        ([&small, &vae], &["-o", "/proc/x.gif"], "choose another folder"),
        ([&small, &vae], &["-o", "x.gif", "--fps", "0"], "a frame rate such as"),
        ([&small, &vae], &["-o", "x.gif", "--fps", "abc"], "a frame rate such as"),
        ([&small, &vae], &["-o", "x.gif", "--fps", "-1"], ""),
        ([&small, &vae], &["-o", "x.gif", "--preview", "x.jpg"], "a preview is a .png"),
        ([&small, &vae], &["-o", "x.gif", "--preview", "missing/x.png"], "missing"),
        ([&small, &vae], &["-o", "x.gif", "--preview", "y.png", "--explain-image", "y.png"], "--preview"),
        ([&small, &vae], &["-o", "x.gif", "--family", "flux"], "image VAEs"),
        ([&small, &vae], &["-o", "x.gif", "--scaling-factor", "2"], "image VAEs"),
        ([&small, &vae], &["-o", "x.gif", "--policy", "fixed", "--set", "chunk=0"], "chunk"),
        ([&picture, &picture_vae], &["-o", "x.png", "--fps", "16"], "--fps is for clips"),
        ([&picture, &picture_vae], &["-o", "x.png", "--preview", "y.png"], "--preview is for clips"),
        ([&picture, &picture_vae], &["-o", "x.png", "--resume"], "--resume is for clips"),
    ];
    for ([latent, vae], options, words) in cases {
        let place = Place::new();
        decode(&place, &[latent.to_owned(), option.clone(), vae.to_owned()], options).failed(2, words);
        assert!(place.files().is_empty(), "{options:?} left {:?}", place.files());
    }
}

#[test]
fn without_ffmpeg_it_is_asked_for_and_the_rest_works() {
    let place = Place::new();
    for name in ["x.mp4", "x.mkv", "x.webm"] {
        // In these tests there is no PATH.
        place.decode(&small(), &["-o", name]).failed(2, "apt install ffmpeg (or brew install ffmpeg), or write .gif");
    }
    assert!(place.files().is_empty());
    for name in ["x.gif", "x.webp", "x.safetensors", "x/"] {
        place.decode(&small(), &["-o", name]).succeeded();
    }
}

/// Leaves what a killed decode leaves, some frames among it.
fn killed(place: &Place, inputs: &[String], options: &[&str]) {
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let arguments = [&["decode"], &inputs[..], &["--device", "cpu"], options].concat();
    // On a busy machine it may end before it is killed: then once more.
    loop {
        let mut child = with_path(place, &arguments).stderr(Stdio::null()).spawn().unwrap();
        while !place.path("x.gif.partial/job.json").is_file() && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        if !child.wait().unwrap().success() {
            break;
        }
        fs::remove_file(place.path("x.gif")).unwrap();
    }
    assert!(!place.path("x.gif").exists());
    assert!(place.path("x.gif.partial/job.json").is_file());
}

#[test]
fn frames_of_another_decode_are_not_gone_on_from() {
    let place = Place::new();
    let values = |value: f32| latent(&[1, 16, 5, 16, 24], value);
    let inputs = [place.write("x.safetensors", values(0.5)), "--vae".into(), model()];
    let alone = [&WHOLE[..], &["-o", "x.gif"]].concat();
    let resumed = [&alone[..], &["--resume"]].concat();
    decode(&place, &inputs, &resumed).succeeded();
    assert_eq!(place.files(), ["x.gif", "x.safetensors"], "a journal that has served is removed");
    let whole = fs::read(place.path("x.gif")).unwrap();
    fs::remove_file(place.path("x.gif")).unwrap();

    killed(&place, &inputs, &resumed);
    place.write("x.safetensors", values(0.25));
    let words = "x.gif.partial: was begun with another latent, model or plan: delete this folder";
    decode(&place, &inputs, &resumed).failed(2, words);
    place.write("x.safetensors", values(0.5));
    decode(&place, &inputs, &[&resumed[..], &["--set", "precision=bf16"]].concat()).failed(2, words);

    // A decode without --resume says that frames are kept.
    let run = decode(&place, &inputs, &alone);
    assert!(run.succeeded().stderr().contains("--resume goes on from them"), "{}", run.stderr());
    let run = decode(&place, &inputs, &[&resumed[..], &["--json"]].concat());
    assert!(run.succeeded().stderr().contains("of 17 frames are there already"), "{}", run.stderr());
    let there = run.json()["resumed_frames"].as_u64().unwrap();
    assert!((1..17).contains(&there), "the time is of the others alone, and the record says so: {}", run.stdout());
    assert!(fs::read(place.path("x.gif")).unwrap() == whole);
    assert!(!place.path("x.gif.partial").exists());
}

/// The small model with a value in the middle of its decoder that is none.
fn broken(value: f32) -> Vec<u8> {
    const NAME: &str = "decoder.middle.0.residual.2.bias";
    let mut bytes = fs::read(&small()[2]).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!(header[NAME]["dtype"], "F16");
    let at = 8 + length + header[NAME]["data_offsets"][0].as_u64().unwrap() as usize;
    let half: [u8; 2] = if value.is_nan() { [0x00, 0x7e] } else { [0x00, 0x7c] };
    bytes[at..at + 2].copy_from_slice(&half);
    assert!(SafeTensors::deserialize(&bytes).is_ok());
    bytes
}

#[test]
fn weights_that_are_not_finite_are_told_and_leave_nothing() {
    for value in [f32::NAN, f32::INFINITY] {
        let place = Place::new();
        let vae = place.write("vae.safetensors", broken(value));
        let inputs = [small()[0].clone(), "--vae".into(), vae];
        let outputs: &[&str] = if ffmpeg() { &["x.mp4", "x.gif", "x/", "x.safetensors"] } else { &["x.gif", "x/"] };
        for output in outputs {
            let run = decode(&place, &inputs, &["-o", output, "--preview", "now.png"]);
            run.failed(1, "");
            assert!(run.stderr().contains("NaN") || run.stderr().contains("infinite"), "{}", run.stderr());
            assert_eq!(place.files(), ["vae.safetensors"], "{output}");
        }
        // Without a frame there is nothing to go on from.
        decode(&place, &inputs, &["-o", "x.gif", "--resume"]).failed(1, "");
        assert_eq!(place.files(), ["vae.safetensors"]);
    }
}
