//! Names of fields, and the kind of what stands in them.

/// The kind of a value, as its field's name says it. The greater one counts if several do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Nothing in particular.
    Open,
    /// A part of something that has the name of a user's file in a field of its own.
    Part,
    /// The name or path of a user's file.
    File,
    /// A prompt's text.
    Prompt,
    /// Text that gives access, or names where such text is.
    Access,
    /// A prompt as tokens: whole numbers in a list, or texts.
    Tokens,
    /// Anything that gives access, numbers included.
    Secret,
}

/// The part of a field's name that has to be the word.
#[derive(Clone, Copy, Debug)]
enum Where {
    Whole,
    Within,
}

use Kind::{Access, File, Prompt, Secret, Tokens};
use Where::{Whole, Within};

/// Words in names of fields of requests, records, recipes, workflows and configurations.
const FIELDS: &[(&str, Where, Kind)] = &[
    ("prompt", Within, Tokens),
    ("negative", Whole, Prompt),
    ("negatives", Whole, Prompt),
    ("caption", Within, Prompt),
    ("text", Whole, Prompt),
    ("texts", Whole, Prompt),
    ("workflow", Within, Prompt),
    ("parameters", Whole, Prompt),
    ("recipe", Whole, Prompt),
    ("extra_pnginfo", Whole, Prompt),
    ("tokens", Whole, Tokens),
    ("token_ids", Whole, Tokens),
    ("input_ids", Whole, Tokens),
    ("ids", Whole, Tokens),
    ("model", Whole, File),
    ("models", Whole, File),
    ("vae", Whole, File),
    ("unet", Whole, File),
    ("transformer", Within, File),
    ("text_encoder", Within, File),
    ("image_encoder", Within, File),
    ("vision_encoder", Within, File),
    ("pipeline", Whole, File),
    ("checkpoint", Within, File),
    ("lora", Whole, File),
    ("loras", Whole, File),
    ("embedding", Whole, File),
    ("embeddings", Whole, File),
    ("conditioning", Whole, File),
    ("image", Whole, File),
    ("mask", Whole, File),
    ("latent", Whole, File),
    ("noise", Whole, File),
    ("input", Whole, File),
    ("output", Whole, File),
    ("file", Whole, File),
    ("files", Whole, File),
    ("filename", Within, File),
    ("file_", Within, File),
    ("_file", Within, File),
    ("folder", Within, File),
    ("path", Within, File),
    ("directory", Within, File),
    ("data", Whole, File),
    ("roots", Whole, File),
    ("audit", Whole, File),
    ("certificate", Whole, File),
    ("clients", Whole, File),
    ("cwd", Whole, File),
    ("home", Whole, File),
    ("host", Whole, File),
    ("hosts", Whole, File),
    ("hostname", Whole, File),
    ("user", Whole, File),
    ("username", Whole, File),
    ("token", Whole, Access),
    ("tokens", Whole, Access),
    ("_token", Within, Access),
    ("token_", Within, Access),
    ("authorization", Within, Secret),
    ("bearer", Whole, Secret),
    ("cookie", Within, Secret),
    ("credential", Within, Secret),
    ("key", Whole, Secret),
    ("api_key", Within, Secret),
    ("apikey", Within, Secret),
    ("access_key", Within, Secret),
    ("private_key", Within, Secret),
    ("passphrase", Within, Secret),
    ("passwd", Within, Secret),
    ("password", Within, Secret),
    ("secret", Within, Secret),
];

/// The kinds of a field, by its name; those of no row are [`Kind::Open`].
pub(crate) fn kinds(name: &str) -> impl Iterator<Item = Kind> {
    let name = name.trim().to_ascii_lowercase().replace(['-', ' '], "_");
    let fits = move |word: &str, place| match place {
        Whole => name.rsplit('.').next() == Some(word),
        Within => name.contains(word),
    };
    FIELDS.iter().filter(move |(word, place, _)| fits(word, *place)).map(|row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_every_spelling() {
        let greatest = |name: &str| kinds(name).max().unwrap_or(Kind::Open);
        for (name, kind) in [
            ("prompt", Tokens),
            ("Negative-Prompt", Tokens),
            ("negative prompt", Tokens),
            ("token-file", Access),
            ("server.tls.key", Secret),
            ("HF_TOKEN", Access),
            ("OPENAI_API_KEY", Secret),
            ("text_encoder_2", File),
            ("vae", File),
            ("family", Kind::Open),
            ("device", Kind::Open),
            ("keys", Kind::Open),
            ("profile", Kind::Open),
            ("tokenizer", Kind::Open),
            ("name", Kind::Open),
        ] {
            assert_eq!(greatest(name), kind, "{name}");
        }
        assert!(FIELDS.iter().all(|(word, ..)| kinds(word).count() > 0));
    }

    #[test]
    fn the_fields_of_records_stay() {
        // The model's is a description, and the rest are numbers, which stay.
        const KNOWN: [&str; 5] = ["model", "parameters", "tokens", "text_tokens", "image_tokens"];
        let schemas = [
            tilewright_plan::record_schema::<tilewright_plan::Vae>(),
            tilewright_plan::record_schema::<tilewright_plan::Denoise>(),
            tilewright_plan::record_schema::<tilewright_plan::Text>(),
        ];
        let mut names = Vec::new();
        schemas.iter().for_each(|schema| collect(schema, &mut names));
        assert!(names.len() > 100);
        for name in names.iter().filter(|name| !KNOWN.contains(&name.as_str())) {
            assert_eq!(kinds(name).max(), None, "{name}");
        }
    }

    /// Collects the names of all properties of a schema.
    fn collect(schema: &serde_json::Value, names: &mut Vec<String>) {
        if let Some(properties) = schema.get("properties").and_then(|found| found.as_object()) {
            names.extend(properties.keys().cloned());
        }
        match schema {
            serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
            serde_json::Value::Object(map) => map.values().for_each(|item| collect(item, names)),
            _ => {}
        }
    }
}
