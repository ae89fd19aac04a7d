//! The settings that a file's texts tell, whoever wrote them: this program, A1111's web UI and
//! those that write as it does, or ComfyUI.

mod a1111;
mod comfyui;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use tilewright_media::Texts;

use crate::{LoraIdentity, PARAMETERS_KEYWORD, Recipe};

/// The keyword of the graph that ComfyUI's server ran.
const GRAPH_KEYWORD: &str = "prompt";

/// The settings that a file was made with, by its texts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    /// The program that wrote them.
    pub written_by: &'static str,
    /// The settings by name, in the order in which they are shown: prompt, `negative_prompt`, seed,
    /// model and what else there is.
    #[serde(flatten, serialize_with = "as_map")]
    pub settings: Vec<(String, Value)>,
}

fn as_map<S: Serializer>(settings: &[(String, Value)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(settings.iter().map(|(name, value)| (name, value)))
}

/// The names of settings in the order in which they are shown; others come behind.
const ORDER: [&str; 21] = [
    "prompt",
    "negative_prompt",
    "seed",
    "model",
    "transformer",
    "text_encoder",
    "vision_encoder",
    "vae",
    "lora",
    "size",
    "frames",
    "fps",
    "batch",
    "steps",
    "sigmas",
    "sampler",
    "scheduler",
    "cfg",
    "guidance",
    "shift",
    "denoise",
];

impl Told {
    /// The settings that a file's texts tell; none if they tell nothing that is known.
    pub fn of(texts: &Texts) -> Option<Self> {
        let of = |keyword: &str| texts.iter().find(|(name, _)| name == keyword).map(|(_, text)| text.as_str());
        let parameters = of(PARAMETERS_KEYWORD).map(a1111::parse);
        if let Ok(recipe) = Recipe::of(texts) {
            let mut found = of_recipe(&recipe);
            // The values that defaults became are there alone.
            for (name, value) in parameters.unwrap_or_default() {
                if ORDER.contains(&name.as_str()) {
                    found.entry(name).or_insert(value);
                }
            }
            return Some(Self::new("tilewright", found));
        }
        if let Some(found) = parameters.filter(|found| found.len() > 1) {
            return Some(Self::new("A1111's web UI, or as it does", found));
        }
        let graph = serde_json::from_str(of(GRAPH_KEYWORD)?).ok()?;
        let found = comfyui::read(&graph);
        (!found.is_empty()).then(|| Self::new("ComfyUI", found))
    }

    fn new(written_by: &'static str, mut found: Map<String, Value>) -> Self {
        let mut settings: Vec<(String, Value)> = Vec::new();
        for name in ORDER {
            settings.extend(found.remove(name).map(|value| (name.to_owned(), value)));
        }
        settings.extend(found);
        Self { written_by, settings }
    }
}

/// The settings of a recipe: those that say something, by their names in it, but for a few.
fn of_recipe(recipe: &Recipe) -> Map<String, Value> {
    let Ok(Value::Object(mut rows)) = serde_json::to_value(recipe) else { return Map::new() };
    rows.retain(|_, value| !value.is_null() && *value != json!(false));
    let Recipe { width, height, frames, seeds, settings, model, loras, .. } = recipe;
    for name in ["width", "height", "seeds", "settings", "model", "loras"] {
        rows.remove(name);
    }
    if *frames <= 1 {
        rows.remove("frames");
        rows.remove("fps");
    }
    if let Some(negative) = rows.remove("negative") {
        rows.insert("negative_prompt".into(), negative);
    }
    let mut add = |name: &str, value: Value| rows.insert(name.into(), value);
    add("seed", if let [seed] = seeds[..] { json!(seed) } else { json!(seeds) });
    add("size", json!(format!("{width}x{height}")));
    if let Some(model) = model {
        add("model", json!(model.name));
    }
    let parts = model.iter().flat_map(|model| model.parts());
    let mut named: Vec<(&'static str, Vec<String>)> = Vec::new();
    for (what, part) in parts {
        let key = match what {
            "transformer" => "transformer",
            "text encoder" => "text_encoder",
            "vision encoder" => "vision_encoder",
            _ => "vae",
        };
        let words = format!("{} ({})", part.name, part.digest);
        match named.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.push(words),
            None => named.push((key, vec![words])),
        }
    }
    for (key, all) in named {
        add(key, json!(all.join(", ")));
    }
    let lora = |lora: &LoraIdentity| {
        let expert = lora.expert.map_or("", |expert| if expert == 0 { "@high" } else { "@low" });
        format!("{}:{}{expert} ({})", lora.file.name, lora.strength, lora.file.digest)
    };
    if !loras.is_empty() {
        add("lora", json!(loras.iter().map(lora).collect::<Vec<_>>().join(", ")));
    }
    if !settings.is_empty() {
        let set: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        add("set", json!(set.join(" ")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelIdentity, PartIdentity};

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_recipe_tells_all_and_its_model() {
        let part = |name: &str| PartIdentity { name: name.into(), bytes: 1, digest: "sampled:ab".into() };
        let model = ModelIdentity {
            name: "flux".into(),
            transformers: vec![part("a.safetensors")],
            text_encoders: vec![part("b.safetensors"), part("c.safetensors")],
            ..ModelIdentity::default()
        };
        let recipe = Recipe {
            prompt: "a fox".into(),
            seeds: vec![7],
            width: 64,
            height: 32,
            frames: 1,
            steps: Some(4),
            cfg: 1.0,
            convention: "comfyui".into(),
            model: Some(model),
            ..Recipe::default()
        };
        let (keyword, text) = recipe.text();
        let all = texts(&[(&keyword, &text), ("parameters", "a fox\nSteps: 9, Shift: 3, Seed: 1"), ("prompt", "{}")]);
        let told = Told::of(&all).unwrap();
        let json = serde_json::to_value(&told).unwrap();
        let found = |name: &str| json[name].clone();
        let names: Vec<&str> = told.settings.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..3], ["prompt", "seed", "model"]);
        assert_eq!((told.written_by, found("seed"), found("steps")), ("tilewright", json!(7), json!(4)));
        assert_eq!((found("model"), found("shift"), found("size")), (json!("flux"), json!(3), json!("64x32")));
        assert_eq!(found("text_encoder"), "b.safetensors (sampled:ab), c.safetensors (sampled:ab)");
        assert_eq!(Told::of(&texts(&[("prompt", "no graph"), ("parameters", "no settings")])), None);
    }
}
