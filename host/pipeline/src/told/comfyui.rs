//! The graph that ComfyUI's server ran: the settings of its sampler, and what leads to it.

use serde_json::{Map, Value, json};

/// The most nodes on the way from a sampler to what it takes, so that a graph that bites its tail
/// ends.
const DEEPEST: usize = 64;

/// Fields of a sampler and of the nodes that feed it, with our names.
const FIELDS: [(&str, &str); 12] = [
    ("seed", "seed"),
    ("noise_seed", "seed"),
    ("steps", "steps"),
    ("cfg", "cfg"),
    ("sampler_name", "sampler"),
    ("scheduler", "scheduler"),
    ("denoise", "denoise"),
    ("guidance", "guidance"),
    ("shift", "shift"),
    ("max_shift", "shift"),
    ("sigmas", "sigmas"),
    ("length", "frames"),
];

/// Fields that name a model's file.
const MODELS: [&str; 3] = ["unet_name", "ckpt_name", "model_name"];

/// Inputs of a sampler that are followed for its settings.
const FOLLOWED: [&str; 8] =
    ["noise", "guider", "sampler", "sigmas", "model", "positive", "conditioning", "latent_image"];

/// Classes whose node makes latents of noise: `SamplerCustom` and its kin, `KSampler` and its.
const SAMPLERS: [&str; 2] = ["KSampler", "SamplerCustom"];

/// Reads the settings of a graph's first sampler; nothing if it has none.
pub fn read(graph: &Value) -> Map<String, Value> {
    let mut found = Map::new();
    let Some(nodes) = graph.as_object() else { return found };
    let is_sampler = |node: &&Value| {
        let class = node["class_type"].as_str().unwrap_or_default();
        SAMPLERS.iter().any(|name| class.starts_with(name)) && class != "KSamplerSelect"
    };
    // The first by number: a later one goes on from it.
    let mut ordered: Vec<(&String, &Value)> = nodes.iter().collect();
    ordered.sort_by_key(|(id, _)| (id.parse::<u64>().unwrap_or(u64::MAX), (*id).clone()));
    let Some(sampler) = ordered.iter().map(|(_, node)| *node).find(is_sampler) else { return found };
    let walk = Walk { nodes };
    let guider = walk.linked(sampler, "guider").unwrap_or(sampler);
    for (input, name) in [("positive", "prompt"), ("conditioning", "prompt"), ("negative", "negative_prompt")] {
        let text = walk.linked(guider, input).and_then(|node| walk.text(node, 0));
        if let (Some(text), false) = (text, found.contains_key(name)) {
            found.insert(name.into(), json!(text));
        }
    }
    walk.collect(sampler, 0, &mut found);
    found
}

struct Walk<'a> {
    nodes: &'a Map<String, Value>,
}

impl<'a> Walk<'a> {
    /// The node that an input takes.
    fn linked(&self, node: &'a Value, input: &str) -> Option<&'a Value> {
        self.of_link(&node["inputs"][input])
    }

    fn of_link(&self, link: &Value) -> Option<&'a Value> {
        let id = link.as_array()?.first()?;
        self.nodes.get(id.as_str()?)
    }

    /// A field's value: its own, or that of the node that gives it.
    fn value(&self, value: &'a Value, depth: usize) -> Option<&'a Value> {
        match value {
            Value::Null | Value::Object(_) => None,
            Value::Array(_) if depth < DEEPEST => {
                let inputs = self.of_link(value)?["inputs"].as_object()?;
                let own = ["value", "seed", "noise_seed", "text", "string", "int", "float"];
                own.iter().find_map(|name| self.value(inputs.get(*name)?, depth + 1))
            }
            Value::Array(_) => None,
            value => Some(value),
        }
    }

    /// The text that a conditioning is made of.
    fn text(&self, node: &'a Value, depth: usize) -> Option<String> {
        let inputs = node["inputs"].as_object().filter(|_| depth < DEEPEST)?;
        // An encoder of several models has a text for each.
        let own = ["text", "t5xxl", "text_g", "clip_l", "text_l", "prompt"];
        let found = own.iter().find_map(|name| self.value(inputs.get(*name)?, 0)?.as_str());
        found.map(str::to_owned).or_else(|| {
            let links = inputs.iter().filter(|(name, _)| name.starts_with("conditioning") || *name == "positive");
            links.into_iter().find_map(|(_, link)| self.text(self.of_link(link)?, depth + 1))
        })
    }

    /// Collects settings from a node and those that feed it; nearer ones count.
    fn collect(&self, node: &'a Value, depth: usize, found: &mut Map<String, Value>) {
        let Some(inputs) = node["inputs"].as_object().filter(|_| depth < DEEPEST) else { return };
        for (theirs, ours) in FIELDS {
            let value = inputs.get(theirs).and_then(|value| self.value(value, 0));
            if let (Some(value), false) = (value, found.contains_key(ours)) {
                found.insert(ours.into(), value.clone());
            }
        }
        let number = |name: &str| inputs.get(name).and_then(|value| self.value(value, 0)?.as_u64());
        if let (Some(width), Some(height), false) = (number("width"), number("height"), found.contains_key("size")) {
            found.insert("size".into(), json!(format!("{width}x{height}")));
        }
        for (name, keys) in [("model", &MODELS[..]), ("lora", &["lora_name"])] {
            let value = keys.iter().find_map(|key| self.value(inputs.get(*key)?, 0)?.as_str());
            match (value, found.get(name).and_then(Value::as_str)) {
                (Some(file), None) => drop(found.insert(name.into(), json!(file))),
                (Some(file), Some(before)) if name == "lora" && !before.split(", ").any(|known| known == file) => {
                    let all = format!("{before}, {file}");
                    found.insert(name.into(), json!(all));
                }
                _ => {}
            }
        }
        for input in FOLLOWED {
            if let Some(next) = self.linked(node, input) {
                self.collect(next, depth + 1, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(class: &str, inputs: Value) -> Value {
        json!({ "class_type": class, "inputs": inputs })
    }

    #[test]
    fn settings_are_found_from_the_sampler_on() {
        let graph = json!({
            "1": node("CheckpointLoaderSimple", json!({ "ckpt_name": "sd.safetensors" })),
            "2": node("LoraLoader", json!({ "model": ["1", 0], "clip": ["1", 1], "lora_name": "style.safetensors" })),
            "3": node("CLIPTextEncode", json!({ "clip": ["2", 1], "text": "a fox" })),
            "4": node("CLIPTextEncode", json!({ "clip": ["2", 1], "text": ["9", 0] })),
            "5": node("EmptyLatentImage", json!({ "width": 512, "height": 768, "batch_size": 1 })),
            "6": node("KSampler", json!({
                "model": ["2", 0], "positive": ["3", 0], "negative": ["4", 0], "latent_image": ["5", 0], "seed": 7, "steps": 20,
                "cfg": 8.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0 })),
            "9": node("PrimitiveString", json!({ "value": "ugly" })),
        });
        let found = read(&graph);
        for (name, value) in [
            ("prompt", json!("a fox")),
            ("negative_prompt", json!("ugly")),
            ("seed", json!(7)),
            ("steps", json!(20)),
            ("cfg", json!(8.0)),
            ("sampler", json!("euler")),
            ("scheduler", json!("normal")),
            ("size", json!("512x768")),
            ("model", json!("sd.safetensors")),
            ("lora", json!("style.safetensors")),
        ] {
            assert_eq!(found[name], value, "{name}");
        }
    }

    #[test]
    fn an_advanced_sampler_is_followed_to_what_feeds_it() {
        let graph = json!({
            "1": node("UNETLoader", json!({ "unet_name": "flux.safetensors" })),
            "2": node("CLIPTextEncode", json!({ "text": "a fox" })),
            "3": node("FluxGuidance", json!({ "conditioning": ["2", 0], "guidance": 3.5 })),
            "4": node("BasicGuider", json!({ "model": ["1", 0], "conditioning": ["3", 0] })),
            "5": node("RandomNoise", json!({ "noise_seed": 5 })),
            "6": node("KSamplerSelect", json!({ "sampler_name": "dpmpp_2m" })),
            "7": node("BasicScheduler", json!({ "model": ["1", 0], "scheduler": "simple", "steps": 8, "denoise": 1.0 })),
            "8": node("SamplerCustomAdvanced", json!({
                "noise": ["5", 0], "guider": ["4", 0], "sampler": ["6", 0], "sigmas": ["7", 0], "latent_image": ["8", 0] })),
        });
        let found = read(&graph);
        for (name, value) in [
            ("prompt", json!("a fox")),
            ("seed", json!(5)),
            ("steps", json!(8)),
            ("sampler", json!("dpmpp_2m")),
            ("guidance", json!(3.5)),
            ("model", json!("flux.safetensors")),
        ] {
            assert_eq!(found[name], value, "{name}");
        }
        assert!(read(&json!([1])).is_empty() && read(&json!({ "1": 2 })).is_empty());
    }
}
