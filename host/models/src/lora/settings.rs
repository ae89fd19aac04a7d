//! The scale of a LoRA's changes where tensors don't tell it: alpha and rank in the file's header
//! or beside it, as diffusers, peft and trainers write them.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::SystemTime,
};

use tilewright_files::json_fault;

use super::{
    names::{self, Owner},
    pattern::Pattern,
    written::Written,
};
use crate::Checkpoint;

/// The text of a header that is peft's configuration, as diffusers saves it.
const IN_HEADER: &str = "lora_adapter_metadata";

/// peft's configuration beside a file, and the name that peft gives to the file.
pub(super) const BESIDE: &str = "adapter_config.json";
pub(super) const PEFT_FILE: &str = "adapter_model.safetensors";

/// The longest configuration that is read, the most patterns in it, and the most that are more than
/// a name: those take memory and time.
const LONGEST: u64 = 4 << 20;
const MOST_PATTERNS: usize = 1 << 14;
const MOST_EXPRESSIONS: usize = 256;

/// The most names that are tried on such patterns.
const MOST_TRIES: usize = 1 << 22;

/// The rank and the alpha of a configuration that leaves them out (peft's `LoraConfig`).
const USUAL: f64 = 8.0;

/// Names of an alpha, and those of the rank that makes a pair with it.
const PAIRS: [(&str, &[&str]); 4] = [
    ("lora_alpha", &["r", "rank", "lora_rank", "lora_r", "lora_dim"]),
    ("network_alpha", &["network_dim", "network_rank", "rank"]),
    ("ss_network_alpha", &["ss_network_dim"]),
    ("alpha", &["rank", "r", "dim"]),
];

/// Settings under which up and down are not all of a change, and the change's name.
const REFUSED: [(&str, &str); 2] = [("use_dora", "DoRA (use_dora)"), ("use_qalora", "QALoRA (use_qalora)")];

/// Beginnings of `init_lora_weights` that take the first product out of the model's weights, so
/// that the change is against other weights than the model's.
const BEGINS_IN_WEIGHTS: [&str; 5] = ["pissa", "corda", "olora", "lora_ga", "loftq"];

/// Settings by name.
type Fields = Vec<(String, Written)>;

/// A pair of alpha and rank, and its exceptions.
#[derive(Debug)]
struct Pair {
    /// The place that it stands in, in words.
    origin: String,
    /// The network that it is for; any if it doesn't say.
    owner: Option<Owner>,
    /// peft reads it: its rank is that of the tensors, or peft refuses the file.
    is_peft: bool,
    alpha: f64,
    rank: f64,
    alphas: Rc<[(Pattern, f64)]>,
    ranks: Rc<[(Pattern, f64)]>,
    /// The alpha is over the rank's root (rsLoRA).
    by_root: bool,
}

impl Pair {
    /// A layer's alpha and rank.
    fn of(&self, layer: &Layer<'_>) -> Result<[f64; 2], String> {
        let first = |patterns: &[(Pattern, f64)], usual: f64| {
            for (pattern, value) in patterns {
                if pattern.fits(layer.plain)? || pattern.fits(layer.within_peft())? {
                    return Ok(*value);
                }
            }
            Ok(usual)
        };
        let of = first(&self.alphas, self.alpha).and_then(|alpha| Ok([alpha, first(&self.ranks, self.rank)?]));
        of.map_err(|reason: String| format!("{}: {reason}", self.origin))
    }
}

/// A layer whose scale is asked for.
#[derive(Debug)]
pub(super) struct Layer<'a> {
    /// The layer's name in the file.
    pub written: &'a str,
    /// The layer's name in the network.
    pub plain: &'a str,
    /// The network.
    pub owner: Owner,
    /// The tensor that the rank is read from.
    pub down: &'a str,
    pub rank: f64,
    /// The alpha that is a tensor of its own, with its name.
    pub alpha: Option<(&'a str, f64)>,
}

impl Layer<'_> {
    /// The name as peft knows it, without its own prefix.
    fn within_peft(&self) -> &str {
        self.written.strip_prefix("base_model.model.").unwrap_or(self.written)
    }
}

/// All that is written about a LoRA's scale.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pairs: Vec<Pair>,
    /// An alpha without a rank: its name, and the place that it stands in.
    halves: Vec<String>,
    /// A configuration that may be of another file.
    unclaimed: Option<String>,
    /// Patterns that are more than a name, and the names that were tried on them.
    expressions: usize,
    tries: usize,
    /// Notes, and the matters that they are about: each is noted once.
    notes: Vec<String>,
    noted: Vec<String>,
}

impl Settings {
    /// Reads what is written in a file's header and beside it.
    ///
    /// # Errors
    /// A configuration is broken, or one of another kind of change, in words.
    pub fn read(file: &Checkpoint) -> Result<Self, String> {
        let mut settings = Self::default();
        match beside(file.path()) {
            Beside::Own(path) => {
                let broken = |error: &dyn std::fmt::Display| format!("{BESIDE} beside it can't be read: {error}");
                let text = tilewright_files::read(&path, LONGEST).map_err(|error| broken(&error))?;
                let written: Written = serde_json::from_slice(&text).map_err(|error| broken(&json_fault(&error)))?;
                let entries = written.into_map().ok_or_else(|| broken(&"it has no settings by name"))?;
                settings.add(&format!("{BESIDE} beside it"), entries, true)?;
            }
            Beside::Unclaimed(files) => {
                settings.unclaimed = Some(format!(
                    "{BESIDE} beside it is not read: {files} files lie there; rename the one that it is of to {PEFT_FILE}"
                ));
            }
            Beside::Nothing => {}
        }
        if let Some(text) = file.texts().get(IN_HEADER).filter(|text| !text.trim().is_empty()) {
            let broken = |reason: String| format!("its metadata {IN_HEADER} is no description of peft's ({reason})");
            let written: Written = serde_json::from_str(text).map_err(|error| broken(json_fault(&error)))?;
            let entries = written.into_map().ok_or_else(|| broken("it has no settings by name".into()))?;
            settings.add(&format!("{IN_HEADER} in its header"), entries, true)?;
        }
        let mut texts: Vec<(String, Written)> =
            file.texts().iter().map(|(name, text)| (name.clone(), Written::Text(text.clone()))).collect();
        texts.sort_by(|one, other| one.0.cmp(&other.0));
        settings.add("its header", texts, false)?;
        Ok(settings)
    }

    /// Adds what is written in one place, by the networks that the entries are for.
    fn add(&mut self, origin: &str, entries: Vec<(String, Written)>, is_peft: bool) -> Result<(), String> {
        let mut groups: Vec<(Option<Owner>, Fields)> = Vec::new();
        for (key, value) in entries {
            let (start, field) =
                key.rsplit_once('.').map_or(("", key.as_str()), |(_, field)| key.split_at(key.len() - field.len()));
            let owner = match names::owner(start) {
                _ if start.is_empty() => None,
                (owner, "") => Some(owner),
                // An entry of a text encoder, or of nothing that is known.
                _ => continue,
            };
            match groups.iter_mut().find(|(of, _)| *of == owner) {
                Some((_, fields)) => fields.push((field.to_owned(), value)),
                None => groups.push((owner, vec![(field.to_owned(), value)])),
            }
        }
        groups.into_iter().try_for_each(|(owner, fields)| self.add_group(origin, owner, fields, is_peft))
    }

    fn add_group(
        &mut self,
        origin: &str,
        owner: Option<Owner>,
        fields: Vec<(String, Written)>,
        is_peft: bool,
    ) -> Result<(), String> {
        let number = |name: &str| fields.iter().find(|(of, _)| of == name).and_then(|(_, value)| value.number());
        if is_peft {
            check_kind(origin, &fields)?;
        }
        let by_root = fields.iter().any(|(name, value)| name == "use_rslora" && value.is_true());
        let mut found: Vec<(String, [f64; 2])> = Vec::new();
        for (alpha, ranks) in PAIRS {
            let Some(value) = number(alpha) else {
                let written = fields.iter().find(|(of, _)| of == alpha).and_then(|(_, value)| value.text());
                match written.map(|text| format!("{alpha} in {origin} is {text:?}, which is no number")) {
                    Some(fault) if is_peft => return Err(fault),
                    fault => self.halves.extend(fault.map(|fault| format!("{fault}: it doesn't count"))),
                }
                continue;
            };
            let ranks: Vec<f64> = ranks.iter().filter_map(|rank| number(rank)).collect();
            if ranks.is_empty() && !is_peft {
                self.halves.push(format!("{alpha} {value} in {origin} stands without its rank and doesn't count"));
            }
            let place = if is_peft { origin.to_owned() } else { format!("{alpha} in {origin}") };
            found.extend(ranks.into_iter().map(|rank| (place.clone(), [value, rank])));
        }
        let mut patterns = [Vec::new(), Vec::new()];
        for (name, value) in fields.iter().cloned() {
            let place = match name.as_str() {
                "alpha_pattern" => 0,
                "rank_pattern" => 1,
                _ => continue,
            };
            for (pattern, value) in value.into_entries() {
                let value = value.number().ok_or_else(|| format!("{origin}: {name} has no number for {pattern:?}"))?;
                patterns[place].push((pattern, value));
            }
            if patterns[place].len() > MOST_PATTERNS {
                return Err(format!("{origin}: {name} has more than {MOST_PATTERNS} patterns"));
            }
        }
        if is_peft && found.is_empty() {
            let rank = ["r", "rank"].into_iter().find_map(number).unwrap_or(USUAL);
            found.push((origin.to_owned(), [number("lora_alpha").unwrap_or(USUAL), rank]));
        }
        let mut compiled = |patterns: &[(String, f64)]| -> Result<Rc<[(Pattern, f64)]>, String> {
            let broken = |reason: String| format!("{origin}: {reason}");
            let pattern = |(text, value): &(String, f64)| {
                let pattern = Pattern::new(text)?;
                self.expressions += usize::from(pattern.is_expression());
                match self.expressions > MOST_EXPRESSIONS {
                    true => Err(format!("more than {MOST_EXPRESSIONS} patterns that are no names")),
                    false => Ok((pattern, *value)),
                }
            };
            patterns.iter().map(pattern).collect::<Result<_, String>>().map_err(broken)
        };
        let [alphas, ranks] = [compiled(&patterns[0])?, compiled(&patterns[1])?];
        for (place, [alpha, rank]) in found {
            self.pairs.push(Pair {
                origin: place,
                owner,
                is_peft,
                alpha,
                rank,
                alphas: alphas.clone(),
                ranks: ranks.clone(),
                by_root,
            });
        }
        Ok(())
    }

    /// The pairs that are about a network: those that name it, and then those that name none.
    fn pairs_for(&self, owner: Owner) -> Vec<&Pair> {
        let of = |wanted: Option<Owner>| self.pairs.iter().filter(move |pair| pair.owner == wanted);
        of(Some(owner)).chain(of(None)).collect()
    }

    /// The factor of a layer's up · down: by its own alpha, by what is written, or else 1.
    ///
    /// # Errors
    /// The settings contradict the tensors where diffusers and peft refuse that, in words.
    pub fn scale(&mut self, layer: &Layer<'_>) -> Result<f64, String> {
        self.tries += 2 * self.pairs.len() * self.expressions;
        if self.tries > MOST_TRIES {
            return Err(format!("{} patterns are too many for so many layers", self.expressions));
        }
        let Layer { down, rank, .. } = *layer;
        let mut known = layer.alpha.map(|(name, alpha)| (alpha / rank, name.to_owned()));
        let mut notes = Vec::new();
        let pairs = self.pairs_for(layer.owner);
        for pair in &pairs {
            let [alpha, own_rank] = pair.of(layer)?;
            let Pair { origin, is_peft, by_root, .. } = pair;
            if own_rank != rank {
                let fault = format!("{origin} says a rank of {own_rank}, and {down} has {rank}");
                if *is_peft {
                    return Err(format!("{fault}: one of the two is of another file"));
                }
                if layer.alpha.is_none() {
                    notes.push((format!("{origin} rank"), format!("{fault}: its alpha doesn't count")));
                }
                continue;
            }
            let scale = alpha / if *by_root { rank.sqrt() } else { rank };
            match &known {
                None => known = Some((scale, origin.clone())),
                // Tensors may be narrow.
                Some((before, _)) if (scale - before).abs() <= 2e-3 * before.abs().max(scale.abs()) => {}
                Some((before, from)) => {
                    let fault = format!("{from} makes the factor {before}, and {origin} {scale}");
                    if layer.alpha.is_some() && *is_peft {
                        return Err(format!("{fault}: leave one of the two out"));
                    }
                    notes.push((format!("{origin} factor"), format!("{fault}: the first counts")));
                }
            }
        }
        if known.is_none() {
            let others = || {
                self.pairs.first().map(|pair| format!("{} is for another part: {down} has a factor of 1", pair.origin))
            };
            let unsaid = pairs.is_empty().then(others).flatten();
            let said = unsaid.or_else(|| self.halves.first().cloned()).or_else(|| self.unclaimed.clone());
            notes.extend(said.map(|said| (String::new(), said)));
        }
        for (about, note) in notes {
            self.note(&about, note);
        }
        Ok(known.map_or(1.0, |(scale, _)| scale))
    }

    /// Keeps a note, one about each matter.
    fn note(&mut self, about: &str, note: String) {
        if !self.noted.iter().any(|known| known == about) {
            self.noted.push(about.to_owned());
            self.notes.push(note);
        }
    }

    /// The notes on the scales that were asked for.
    pub fn into_notes(self) -> Vec<String> {
        self.notes
    }
}

/// Refuses the settings of other kinds of change than up · down.
fn check_kind(origin: &str, fields: &[(String, Written)]) -> Result<(), String> {
    let refused =
        |kind: &str| Err(format!("{origin} says {kind}, which is not supported: give a LoRA with up and down"));
    for (name, value) in fields {
        if let Some((_, kind)) = REFUSED.iter().find(|(of, _)| of == name).filter(|_| value.is_true()) {
            return refused(kind);
        }
        match (name.as_str(), value.text()) {
            ("peft_type", Some(kind)) if !kind.eq_ignore_ascii_case("lora") => return refused(kind),
            ("init_lora_weights", Some(start)) => {
                let start = start.to_ascii_lowercase();
                if BEGINS_IN_WEIGHTS.iter().any(|known| start.starts_with(known)) {
                    return Err(format!(
                        "{origin} says init_lora_weights {start}: its changes are against other weights than the model's; \
                         save it with peft's path_initial_model_for_weight_conversion"
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// peft's configuration beside a file.
enum Beside {
    Nothing,
    /// It is the file's.
    Own(PathBuf),
    /// It may be of any of this number of files.
    Unclaimed(usize),
}

fn beside(file: &Path) -> Beside {
    let path = file.with_file_name(BESIDE);
    if !path.is_file() {
        return Beside::Nothing;
    }
    if file.file_name().is_some_and(|name| name == PEFT_FILE) {
        return Beside::Own(path);
    }
    let weights = |name: &Path| name.extension().is_some_and(|end| ["safetensors", "gguf"].iter().any(|of| end == *of));
    let folder = path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    match entries.into_iter().flatten().flatten().filter(|entry| weights(&entry.path())).count() {
        0 | 1 => Beside::Own(path),
        // It is the configuration of the file that has peft's name.
        _ if file.with_file_name(PEFT_FILE).is_file() => Beside::Nothing,
        files => Beside::Unclaimed(files),
    }
}

/// peft's configuration beside a file as it was at some time: none if none is read with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State(Option<(PathBuf, u64, u64, Option<SystemTime>)>);

impl State {
    /// The state at present.
    pub fn of(file: &Path) -> Self {
        let path = path_beside(file);
        Self(path.and_then(|path| {
            let facts = std::fs::metadata(&path).ok()?;
            Some((path, facts.ino(), facts.len(), facts.modified().ok()))
        }))
    }
}

/// peft's configuration beside a file, if it is read with it.
pub(super) fn path_beside(file: &Path) -> Option<PathBuf> {
    match beside(file) {
        Beside::Own(path) => Some(path),
        Beside::Nothing | Beside::Unclaimed(_) => None,
    }
}
