//! Jobs that encode: the latents of the command line, and what is refused.

use std::fs;

use serde_json::{Value, json};

use super::server::Server;
use crate::encode::{encode, png, tensor};
use crate::encode_clip::clip;
use crate::program::{Place, fixture, root};

fn config() -> String {
    let vae = |path: &str| root().join(path).display().to_string();
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\nroots = [\".\"]\n\
         [models.picture]\nvae = {:?}\n[models.clip]\nvae = {:?}\n[models.transformer]\ntransformer = {:?}\n\
         [devices.main]\ndevice = \"cpu\"\n[policies.own]\nsource = \"fixed\"\nset = {{ space = \"whole\" }}\n\
         [[routes]]\nstage = \"encode\"\nname = \"encodes\"\npolicy = \"own\"\n[[routes]]\npolicy = \"adaptive\"\n",
        fixture("generate-flux/vae"),
        vae("examples/models/wan-tiny/Wan2.1_VAE.safetensors"),
        fixture("generate-flux"),
    )
}

fn picture(width: u32, height: u32) -> Vec<u8> {
    png(&image::RgbImage::from_fn(width, height, |x, y| image::Rgb([(x * 5) as u8, (y * 7) as u8, 90])))
}

#[test]
fn encodes_have_the_latents_of_the_command_line() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    // Not a multiple of the scale: the middle counts.
    place.write("picture.png", picture(50, 35));
    place.write("clip.safetensors", clip(7, 32, 40));
    let whole = ["--policy", "fixed", "--set", "space=whole"];
    let vaes = [
        fixture("generate-flux/vae"),
        root().join("examples/models/wan-tiny/Wan2.1_VAE.safetensors").display().to_string(),
    ];
    for (model, vae, file, request, own, frames) in [
        ("picture", &vaes[0], "picture.png", json!({}), &["-o", "hand.latent"][..], 1),
        (
            "picture",
            &vaes[0],
            "picture.png",
            json!({ "format": "safetensors", "scaled": true }),
            &["-o", "hand.safetensors", "--scaled"],
            1,
        ),
        ("clip", &vaes[1], "clip.safetensors", json!({}), &["-o", "hand.latent"], 5),
        (
            "clip",
            &vaes[1],
            "clip.safetensors",
            json!({ "encode": { "frames": 1 } }),
            &["-o", "hand.latent", "--frames", "1"],
            1,
        ),
    ] {
        let mut request = request;
        request["model"] = json!(model);
        if request["encode"].is_null() {
            request["encode"] = json!({});
        }
        let bytes = fs::read(place.path(file)).unwrap();
        let id = server.submit_files(&request, &[("image", &bytes)]).with(202)["id"].as_str().unwrap().to_owned();
        let job = server.ended(&id);
        let told = ["state", "stage", "frames", "route"].map(|key| job[key].clone());
        assert_eq!(told, [json!("done"), json!("encode"), json!(frames), json!("encodes")], "{job}");
        assert_eq!(job["results"][0]["content_type"], "application/octet-stream");
        fs::write(place.path("job.latent"), server.get(&format!("/v1/jobs/{id}/result")).body).unwrap();
        encode(&place, file, vae, &[&whole[..], own].concat()).succeeded();
        let name = if own[1].ends_with(".latent") { "latent_tensor" } else { "latent" };
        let [made, hand] = ["job.latent", own[1]].map(|file| tensor(&place.path(file), name));
        assert!(made == hand, "{model} {file}: another latent");
        let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
        assert_eq!((&record["stage"], &record["policy"]["name"]), (&json!("encode"), &json!("fixed")), "{record}");
        assert!(server.get(&format!("/jobs/{id}")).status == 200);
    }
    // By its path, and begun anew with the same key.
    let path = place.path("picture.png").canonicalize().unwrap();
    let request = json!({ "model": "picture", "encode": { "image_path": path } });
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    let models = server.get("/v1/models").with(200)["models"].clone();
    let stages = |name: &str| {
        let model = models.as_array().unwrap().iter().find(|model| model["name"] == name).unwrap().clone();
        model["stages"].clone()
    };
    assert_eq!((stages("clip"), stages("transformer")), (json!(["decode", "encode"]), json!(["denoise"])));
    assert_eq!(server.end(), 0);
}

#[test]
fn encodes_that_make_no_sense_are_one_line() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let (whole, small) = (picture(48, 32), picture(7, 7));
    let cut = &whole[..whole.len() - 20];
    let long = clip(5, 32, 40);
    let of = |model: &str, fields: Value| {
        let mut request = json!({ "model": model, "encode": {} });
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        request
    };
    let refused = |request: &Value, files: &[(&str, &[u8])]| server.submit_files(request, files).problem(422);
    for (line, words) in [
        (refused(&of("picture", json!({})), &[]), "image: expected a picture or clip"),
        (refused(&of("transformer", json!({})), &[("image", &whole)]), "has no vae"),
        (
            refused(&of("picture", json!({})), &[("image", &whole), ("mask", &whole)]),
            "mask: an encode takes an image alone",
        ),
        (refused(&of("picture", json!({ "format": "png" })), &[("image", &whole)]), "format: an encode makes a latent"),
        (
            refused(&of("picture", json!({ "scaled": true })), &[("image", &whole)]),
            "scaled: ComfyUI's latents carry no scaling",
        ),
        (refused(&of("picture", json!({ "fps": "16" })), &[("image", &whole)]), "fps: is for other jobs"),
        (
            refused(&of("picture", json!({ "prompt": "a cat" })), &[("image", &whole)]),
            "encode: give one of encode, sample and prompt",
        ),
        (
            refused(&of("picture", json!({ "encode": { "frames": 0 } })), &[("image", &whole)]),
            "encode.frames: expected at least 1",
        ),
        (refused(&of("picture", json!({})), &[("image", &small)]), "image: 7×7 pixels are less than"),
        (refused(&of("picture", json!({})), &[("image", cut)]), "image: "),
        (refused(&of("picture", json!({})), &[("image", b"no picture")]), "image: "),
        (refused(&of("picture", json!({})), &[("image", &long)]), "encode the first frame alone with encode.frames 1"),
        (
            refused(&of("picture", json!({ "memory_limit_bytes": 1 })), &[("image", &whole)]),
            "is too little for this picture or clip",
        ),
    ] {
        assert!(line.contains(words) && !line.contains("incoming"), "{line}");
    }
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"], json!([]));
    assert_eq!(server.end(), 0);
}
