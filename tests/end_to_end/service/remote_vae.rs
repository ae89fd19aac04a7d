//! diffusers' remote VAE protocol: the pixels and latents of the command line, in each form that
//! its client asks for, and what is refused.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use half::{bf16, f16};
use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::{
    encode::{encode, png, tensor},
    program::{Place, bundled, fixture, largest_difference, root},
    video::ffmpeg,
};

const TENSOR: (&str, &str) = ("Accept", "tensor/binary");

fn config(server: &str) -> String {
    let path = |path: &str| root().join(path).display().to_string();
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n{server}\
         [models.picture]\nvae = {:?}\n[models.clip]\nvae = {:?}\n[models.encoder]\nvae = {:?}\n\
         [models.transformer]\ntransformer = {:?}\n[devices.main]\ndevice = \"cpu\"\n\
         [policies.own]\nsource = \"fixed\"\nset = {{ space = \"whole\" }}\n[[routes]]\npolicy = \"own\"\n",
        bundled()[2],
        path("examples/models/wan-tiny/Wan2.1_VAE.safetensors"),
        fixture("generate-flux/vae"),
        fixture("generate-flux"),
    )
}

/// The latents of a file that `tilewright decode` takes.
fn latents(path: &str) -> (Vec<usize>, Vec<f32>) {
    tensor(path.as_ref(), "latent_tensor")
}

fn bytes(values: &[f32], dtype: &str) -> Vec<u8> {
    match dtype {
        "float16" => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        "bfloat16" => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// A query as `requests` writes it.
fn query(shape: &[usize], dtype: &str, more: &str) -> String {
    let shape: String = shape.iter().map(|side| format!("shape={side}&")).collect();
    format!("{shape}dtype={dtype}{more}")
}

fn ask(server: &Server, path: &str, query: &str, accept: (&str, &str), body: &[u8]) -> Answer {
    let headers = [accept, ("Content-Type", "tensor/binary")];
    server.ask("POST", &format!("/v1/remote-vae/{path}?{query}"), &headers, body)
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers[name].to_str().unwrap()
}

/// The tensor of an answer, in the type that it should have.
fn values(answer: &Answer, dtype: &str) -> (Vec<usize>, Vec<f32>) {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(["content-type", "dtype"].map(|name| header(answer, name)), [TENSOR.1, dtype]);
    let shape: Vec<usize> = serde_json::from_slice(answer.headers["shape"].as_bytes()).unwrap();
    let body = &answer.body;
    let found: Vec<f32> = match dtype {
        "uint8" => body.iter().map(|byte| f32::from(*byte)).collect(),
        "float16" => body.chunks(2).map(|pair| f16::from_le_bytes(pair.try_into().unwrap()).to_f32()).collect(),
        "bfloat16" => body.chunks(2).map(|pair| bf16::from_le_bytes(pair.try_into().unwrap()).to_f32()).collect(),
        _ => body.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(),
    };
    assert_eq!(shape.iter().product::<usize>(), found.len());
    (shape, found)
}

fn rounded(values: &[f32], dtype: &str) -> Vec<f32> {
    match dtype {
        "float16" => values.iter().map(|value| f16::from_f32(*value).to_f32()).collect(),
        "bfloat16" => values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect(),
        _ => values.to_vec(),
    }
}

#[test]
fn latents_come_back_as_the_command_line_decodes_them() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let [latent, _, vae] = bundled();
    let (shape, sent) = latents(&latent);
    for dtype in ["float32", "float16", "bfloat16"] {
        // By hand: of what the type leaves of the latents.
        let own = rounded(&sent, dtype);
        let file = crate::program::one_tensor("latent", "F32", &shape, &bytes(&own, "float32"));
        place.write("latent.safetensors", file);
        let options = ["--vae", &vae, "-o", "own.safetensors", "--policy", "fixed", "--set", "space=whole"];
        place.run(&[&["decode", "latent.safetensors"][..], &options].concat()).succeeded();
        let (whole, pixels) = place.sample("own.safetensors");
        let query = query(&shape, dtype, "&output_type=pt&partial_postprocess=False&image_format=jpg");
        let answer = ask(&server, "picture/decode", &query, TENSOR, &bytes(&sent, dtype));
        let (found, values) = values(&answer, dtype);
        let own = rounded(&pixels, dtype);
        assert!(found == whole && values == own, "{dtype}: {}", largest_difference(&values, &own));
    }
    // Bytes, shares, files.
    place.run(&["decode", &latent, "--vae", &vae, "-o", "own.png", "--policy", "fixed", "--set", "space=whole"]);
    let own = image::open(place.path("own.png")).unwrap().to_rgb8();
    let (height, width) = (own.height() as usize, own.width() as usize);
    let body = bytes(&sent, "float32");
    let asked = |more: &str, accept| ask(&server, "picture/decode", &query(&shape, "float32", more), accept, &body);
    let (found, pixels) = values(&asked("&output_type=pt&partial_postprocess=True", TENSOR), "uint8");
    assert_eq!(found, [1, height, width, 3]);
    let distance = |found: &[f32]| {
        let pairs = found.iter().zip(own.as_raw());
        pairs.map(|(found, own)| (found - f32::from(*own)).abs()).fold(0.0_f32, f32::max)
    };
    assert!(distance(&pixels) <= 1.0, "rounded to the nearest, either way");
    let (found, shares) = values(&asked("&output_type=pil", TENSOR), "float32");
    assert_eq!(found, [1, 3, height, width]);
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
    let png = asked("&output_type=pil&image_format=png", ("Accept", "image/png"));
    assert_eq!((png.status, header(&png, "content-type")), (200, "image/png"));
    assert_eq!(image::load_from_memory(&png.body).unwrap().to_rgb8(), own);
    let jpeg = asked("&output_type=pil&image_format=jpg", ("Accept", "image/jpeg"));
    assert_eq!((header(&jpeg, "content-type"), &jpeg.body[..2]), ("image/jpeg", &[0xff, 0xd8][..]));
    // Each was a job.
    let jobs = server.get("/v1/jobs").with(200)["jobs"].clone();
    let states: Vec<&Value> = jobs.as_array().unwrap().iter().map(|job| &job["state"]).collect();
    assert_eq!(states, vec!["done"; 7]);
    assert_eq!(server.end(), 0);
}

#[test]
fn scaled_and_packed_latents_are_the_same_picture() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let (shape, sent) = latents(&bundled()[0]);
    let [samples, channels, height, width] = shape[..] else { panic!("{shape:?}") };
    let asked = |shape: &[usize], more: &str, values: &[f32]| {
        let query = query(shape, "float32", &format!("&output_type=pt{more}"));
        ask(&server, "picture/decode", &query, TENSOR, &bytes(values, "float32"))
    };
    let (_, plain) = values(&asked(&shape, "", &sent), "float32");
    let near = |answer: &Answer| {
        let (_, found) = values(answer, "float32");
        let most = largest_difference(&found, &plain);
        assert!(most < 1e-4, "{most}");
    };
    let scaled: Vec<f32> = sent.iter().map(|value| (value - 0.1159) * 0.3611).collect();
    near(&asked(&shape, "&scaling_factor=0.3611&shift_factor=0.1159", &scaled));
    // The model's own, which is the same.
    near(&asked(&shape, "&do_scaling=True", &scaled));
    near(&asked(&shape, "&do_scaling=False&scaling=ignored&height=1&width=1", &sent));
    // The client asks for the model's own beside a shift, too.
    let shifted: Vec<f32> = sent.iter().map(|value| value - 0.5).collect();
    near(&asked(&shape, "&do_scaling=True&shift_factor=0.5", &shifted));
    // `FluxPipeline._pack_latents`.
    let mut packed = Vec::new();
    for row in 0..height / 2 {
        for column in 0..width / 2 {
            for channel in 0..channels {
                let at =
                    |down: usize, right: usize| sent[(channel * height + 2 * row + down) * width + 2 * column + right];
                packed.extend([at(0, 0), at(0, 1), at(1, 0), at(1, 1)]);
            }
        }
    }
    let tokens = [samples, height * width / 4, channels * 4];
    let size = format!("&height={}&width={}", 8 * height, 8 * width);
    let (found, pixels) = values(&asked(&tokens, &size, &packed), "float32");
    assert!(found == [samples, 3, 8 * height, 8 * width] && pixels == plain);
    let line = asked(&tokens, "", &packed).problem(400);
    assert!(line.contains("height and width: expected the picture's"), "{line}");
    let line = asked(&tokens, "&height=64&width=64", &packed).problem(400);
    assert!(line.starts_with("shape: expected [1, "), "{line}");
    assert_eq!(server.end(), 0);
}

#[test]
fn clips_and_encodes_are_served() {
    let place = Place::new();
    let path = std::env::var("PATH").unwrap_or_default();
    let server = Server::started(&place, &config(""), &[("PATH", &path)]);
    let (shape, sent) = latents(&root().join("examples/latents/shapes.latent").display().to_string());
    let body = bytes(&sent, "float32");
    let asked = |more: &str, accept| ask(&server, "clip/decode", &query(&shape, "float32", more), accept, &body);
    let (found, plain) = values(&asked("&output_type=pt", TENSOR), "float32");
    let [_, _, frames, height, width] = found[..] else { panic!("{found:?}") };
    assert_eq!((frames, height, width), (17, 128, 192));
    let (found, shares) = values(&asked("&output_type=pil", TENSOR), "float32");
    assert_eq!(found, [frames, 3, height, width]);
    let plane = height * width;
    // The second frame's first channel.
    let expected = (plain[plane] * 0.5 + 0.5).clamp(0.0, 1.0);
    assert!((shares[3 * plane] - expected).abs() < 1e-6);
    let (found, _) = values(&asked("&output_type=pt&partial_postprocess=True", TENSOR), "uint8");
    assert_eq!(found, [frames, height, width, 3]);
    if ffmpeg() {
        let clip = asked("&output_type=mp4&fps=10", ("Accept", "text/plain"));
        assert_eq!(clip.status, 200, "{}", String::from_utf8_lossy(&clip.body));
        assert_eq!((header(&clip, "content-type"), &clip.body[4..8]), ("video/mp4", &b"ftyp"[..]));
    }
    let line = asked("&output_type=pil", ("Accept", "image/jpeg")).problem(400);
    assert!(line.contains("a clip is no picture"), "{line}");
    // One frame of a clip is a picture.
    let still =
        ask(&server, "clip/decode", &query(&[1, 16, 4, 4], "float32", ""), ("Accept", "image/jpeg"), &body[..1024]);
    assert_eq!((still.status, header(&still, "content-type")), (200, "image/jpeg"));
    // Sound values of which none come.
    let huge = bytes(&[3e38; 256], "float32");
    let line = ask(&server, "clip/decode", &query(&[1, 16, 4, 4], "float32", ""), TENSOR, &huge).problem(422);
    assert!(line.contains("values are NaN or infinite"), "{line}");
    // A picture's file, and its tensor.
    let picture = image::RgbImage::from_fn(48, 32, |x, y| image::Rgb([(x * 5) as u8, (y * 7) as u8, 90]));
    place.write("picture.png", png(&picture));
    let vae = fixture("generate-flux/vae");
    encode(&place, "picture.png", &vae, &["--policy", "fixed", "--set", "space=whole", "-o", "own.latent"]).succeeded();
    let (own_shape, own) = tensor(&place.path("own.latent"), "latent_tensor");
    let encoded = |query: &str, body: &[u8]| {
        let path = format!("/v1/remote-vae/encoder/encode?{query}");
        server.ask("POST", &path, &[("Accept", "*/*")], body)
    };
    let of_file = encoded("", &fs::read(place.path("picture.png")).unwrap());
    assert_eq!(values(&of_file, "float32"), (own_shape.clone(), own.clone()));
    let planes = |channel: usize| picture.pixels().map(move |pixel| f32::from(pixel.0[channel]) / 127.5 - 1.0);
    let sent: Vec<f32> = (0..3).flat_map(planes).collect();
    let more = "&scaling_factor=2&shift_factor=0.5";
    let of_tensor = encoded(&query(&[1, 3, 32, 48], "float32", more), &bytes(&sent, "float32"));
    let (found, latents) = values(&of_tensor, "float32");
    assert_eq!(found, own_shape);
    let most = latents.iter().zip(&own).map(|(found, own)| (found - (own - 0.5) * 2.0).abs()).fold(0.0_f32, f32::max);
    assert!(most < 1e-4, "{most}");
    let large = query(&[1, 3, 32, 48], "float16", "&scaling_factor=1e9");
    let line = encoded(&large, &bytes(&sent, "float16")).problem(422);
    assert!(line.contains("don't fit in float16"), "{line}");
    assert_eq!(server.end(), 0);
}

#[test]
fn requests_that_make_no_sense_are_one_line() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let (shape, sent) = latents(&bundled()[0]);
    let body = bytes(&sent, "float32");
    let right = query(&shape, "float32", "&output_type=pt");
    let mut infinite = body.clone();
    infinite[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let refused = |path: &str, query: &str, status: u16, body: &[u8]| {
        let answer = ask(&server, path, query, TENSOR, body);
        assert_eq!(answer.status, status, "{path} {query}");
        answer.problem(status)
    };
    for (line, words) in [
        (refused("nobody/decode", &right, 404, &body), "no model of that name has a vae: see /v1/models"),
        (refused("transformer/decode", &right, 404, &body), "no model of that name has a vae"),
        (refused("picture/decode", "", 400, &body), "dtype: expected the type of the body"),
        (refused("picture/decode", "dtype=float32", 400, &body), "shape: expected [N, C, h, w]"),
        (refused("picture/decode", &query(&[4, 4], "float32", ""), 400, &body), "not [4, 4]"),
        (refused("picture/decode", &query(&shape, "float64", ""), 400, &body), "dtype=float64: expected float32"),
        (refused("picture/decode", &query(&shape, "float16", ""), 400, &body), "in float16 takes"),
        (refused("picture/decode", &right, 400, &body[..body.len() - 1]), "the body has"),
        (refused("picture/decode", &right, 400, &[]), "the body has 0 bytes"),
        (refused("picture/decode", &query(&[1 << 24; 5], "float32", ""), 400, &body), "more than any file has"),
        (refused("picture/decode", &format!("{right}&scaling_factor=nan"), 400, &body), "scaling_factor=nan"),
        (refused("picture/decode", &right, 422, &infinite), "latent: 1 of its values are NaN or infinite"),
        (
            refused("picture/decode", &format!("{right}&shift_factor=3e38&scaling_factor=1e-38"), 422, &body),
            "are NaN or infinite without their scaling",
        ),
        (
            refused("encoder/encode", &query(&[1, 3, 8, 8], "float32", ""), 422, &infinite[..768]),
            "image: 1 of its values are NaN",
        ),
        (refused("picture/decode", &query(&[1, 4, 8, 8], "float32", ""), 422, &body[..1024]), "latent: "),
        (refused("picture/decode", &format!("{right}&tag=%20"), 422, &body), "tag: "),
        (refused("encoder/encode", "", 422, b"no picture"), "image: "),
        (refused("encoder/encode", &query(&[3, 8, 8], "float32", ""), 400, &body), "shape: expected [N, 3, H, W]"),
        (refused("encoder/encode", "shape=1&shape=3&shape=8&shape=8", 400, &body), "dtype: expected"),
        (refused("encoder/encode", &query(&[1, 5, 8, 8], "float32", ""), 422, &[0; 4 * 5 * 64]), "image: "),
        (
            refused("encoder/encode", &query(&[1, 1, 8, 8], "float32", ""), 422, &[0; 4 * 64]),
            "image: 1 channel, the VAE takes 3",
        ),
    ] {
        assert!(line.contains(words) && !line.contains("incoming") && !line.contains('\n'), "{words}: {line}");
    }
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"], json!([]));
    assert_eq!(server.get("/v1/remote-vae/picture/decode").status, 405);
    assert_eq!(server.end(), 0);
}

#[test]
fn a_client_that_goes_away_takes_its_job_along_and_a_password_is_a_token() {
    let place = Place::new();
    place.write("token", "0123456789abcdef");
    let server = Server::holding(&place, &config("token-file = \"token\"\n"));
    let (shape, sent) = latents(&bundled()[0]);
    let body = bytes(&sent, "float32");
    let query = query(&shape, "float32", "&output_type=pt&tag=held");
    let path = format!("/v1/remote-vae/picture/decode?{query}");
    assert_eq!(server.ask_as("POST", &path, &[TENSOR], &body).status, 401);
    let mut connection = TcpStream::connect(server.address()).unwrap();
    // any:0123456789abcdef
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Basic YW55OjAxMjM0NTY3ODlhYmNkZWY=\r\nContent-Length: {}\r\n\r\n",
        server.address(),
        body.len()
    );
    connection.write_all(&[head.as_bytes(), &body].concat()).unwrap();
    let state = |wanted: &str| {
        server.until(|| {
            let jobs = server.get("/v1/jobs").with(200)["jobs"].clone();
            (jobs[0]["state"] == wanted).then_some(())
        });
    };
    state("running");
    connection.set_nonblocking(true).unwrap();
    assert!(connection.read(&mut [0; 64]).is_err(), "there is no answer before the job's end");
    drop(connection);
    state("cancelled");
    server.kill();
}
