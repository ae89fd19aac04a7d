//! Text encoders in files and folders, and what several of them together are for.

#[cfg(feature = "torch")]
mod tensors;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tilewright_wording::Setting;

use serde::Deserialize;
use tilewright_files::{is_there, json_fault};
use tilewright_models::{Checkpoint, EncoderFile, EncoderKind, Error as ModelError};
use tilewright_sampling::Convention;
use tilewright_tokenizer::{Chunk, Encoder, Family, Gguf, Tokenizer};

use super::TextRequest;
use crate::{Error, Result, SampleModel};

/// The folders of a pipeline's text encoders, and of their tokenizers.
const FOLDERS: [[&str; 2]; 3] =
    [["text_encoder", "tokenizer"], ["text_encoder_2", "tokenizer_2"], ["text_encoder_3", "tokenizer_3"]];

/// Files of a tokenizer in the folder of an encoder or of its tokenizer.
const JSON: &str = "tokenizer.json";
const SENTENCEPIECE: &str = "spiece.model";
const TOKENS: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The largest configuration of a tokenizer.
const LARGEST_CONFIG: u64 = 1 << 20;

/// The tensor of a checkpoint that holds its tokenizer.
const OWN: &str = "spiece_model";

/// The largest file of a tokenizer.
const LARGEST: u64 = tilewright_tokenizer::MAX_FILE_BYTES as u64;

/// The purpose of a set of encoders: conditioning for a kind of transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// T5's states and, if CLIP is present, its pooled state.
    Flux,
    /// UMT5's states, with zeros in the place of padding.
    Wan,
    /// CLIP's and OpenCLIP's states side by side, or OpenCLIP's alone for the refiner, before their
    /// last blocks, and OpenCLIP's pooled state, projected.
    Sdxl,
    /// CLIP's states after the last norm, and its pooled state.
    Clip,
}

/// The sets of encoders and their purposes.
const SETS: [(&[EncoderKind], Purpose); 6] = [
    (&[EncoderKind::Clip, EncoderKind::T5], Purpose::Flux),
    (&[EncoderKind::T5], Purpose::Flux),
    (&[EncoderKind::Umt5], Purpose::Wan),
    (&[EncoderKind::Clip, EncoderKind::OpenClip], Purpose::Sdxl),
    (&[EncoderKind::Clip], Purpose::Clip),
    (&[EncoderKind::OpenClip], Purpose::Sdxl),
];

impl Purpose {
    /// True if states before the last block are taken.
    pub(super) fn takes_inner(self) -> bool {
        self == Purpose::Sdxl
    }

    /// True if a pooled state is projected, where the encoder can.
    pub(super) fn projects(self) -> bool {
        self == Purpose::Sdxl
    }
}

/// A text encoder and the tokenizer of its vocabulary.
#[derive(Debug)]
pub(super) struct TextEncoder {
    pub file: Arc<EncoderFile>,
    pub tokenizer: Tokenizer,
    /// The tokens that its tokenizer is configured to give at most, as diffusers reads them.
    configured: Option<usize>,
    /// The store that its weights are leased from.
    #[cfg(feature = "torch")]
    pub weights: tilewright_engine::WeightStore,
}

impl TextEncoder {
    fn new(file: EncoderFile, tokenizers: &[PathBuf]) -> Result<Self> {
        file.check()?;
        let (tokenizer, source) = tokenizer(&file, tokenizers)?;
        let configured = configured_length(tokenizers)?;
        let encoder = Self {
            file: Arc::new(file),
            tokenizer,
            configured,
            // One run after the other: nothing stays for a next one unless a store is shared.
            #[cfg(feature = "torch")]
            weights: tilewright_engine::WeightStore::new(tilewright_engine::Budget::Bytes(0)),
        };
        let (rows, tokens) = (encoder.file.config.vocabulary(), encoder.tokenizer.size());
        if (rows as usize) < tokens {
            return Err(encoder.refused(format!(
                "a vocabulary of {rows} tokens, and {source} has {tokens}: put its own {JSON} beside it"
            )));
        }
        Ok(encoder)
    }

    /// The encoder as the reader of prompts knows it.
    pub fn reads_as(&self) -> Encoder {
        match self.file.config.kind() {
            EncoderKind::Clip => Encoder::ClipL,
            EncoderKind::OpenClip => Encoder::ClipG,
            EncoderKind::T5 => Encoder::T5,
            EncoderKind::Umt5 => Encoder::Umt5,
        }
    }

    /// The tokens of a chunk, where they are others than the published encoder's: as many as there
    /// are positions, or for diffusers as its tokenizer is configured to give.
    pub fn length(&self, request: &TextRequest<'_>) -> Option<usize> {
        let Some(positions) = self.file.config.positions().map(|positions| positions as usize) else {
            return request.tokens.map(|tokens| tokens as usize);
        };
        let configured = self.configured.filter(|_| request.convention == Convention::Diffusers);
        Some(configured.map_or(positions, |configured| configured.min(positions)))
    }

    pub fn width(&self) -> i64 {
        self.file.config.hidden()
    }

    pub fn refused(&self, reason: String) -> Error {
        Error::input(self.file.file().file().path(), reason)
    }

    /// The tokens of a chunk that it runs on.
    pub fn tokens_run(&self, chunk: &Chunk) -> usize {
        if self.hides_padding() { chunk.used } else { chunk.tokens.len() }
    }

    /// True if no token attends padding, and its states are zeros.
    fn hides_padding(&self) -> bool {
        self.file.config.kind() == EncoderKind::Umt5
    }
}

/// The text encoders of a run, opened and not loaded.
#[derive(Debug)]
pub struct TextEncoders {
    encoders: Vec<TextEncoder>,
    purpose: Purpose,
}

impl TextEncoders {
    /// Opens the encoders in files, folders of models or pipelines, and checkpoints of several
    /// networks, in any order.
    ///
    /// # Errors
    /// A file is unsound or holds no text encoder; two are of one kind; together they serve no
    /// transformer that can be run.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut encoders: Vec<TextEncoder> = Vec::new();
        for path in paths {
            for (file, tokenizers) in files(path) {
                let checkpoint = Arc::new(Checkpoint::open_part(&file, &[]).map_err(ModelError::from)?);
                for file in EncoderFile::find_all(&checkpoint)? {
                    let encoder = TextEncoder::new(file, &tokenizers);
                    // Before what was found: of a file that changes meanwhile it means nothing.
                    checkpoint.check_unchanged().map_err(ModelError::from)?;
                    let encoder = encoder?;
                    let kind = encoder.file.config.kind();
                    if let Some(other) = encoders.iter().find(|other| other.file.config.kind() == kind) {
                        let first = other.file.file().file().path().display();
                        return Err(encoder.refused(format!("a second {} beside {first}: give one", kind.name())));
                    }
                    encoders.push(encoder);
                }
            }
        }
        encoders.sort_by_key(|encoder| encoder.file.config.kind());
        let kinds: Vec<EncoderKind> = encoders.iter().map(|encoder| encoder.file.config.kind()).collect();
        match SETS.iter().find(|(set, _)| *set == kinds) {
            Some((_, purpose)) => Ok(Self { encoders, purpose: *purpose }),
            None => {
                let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
                let path = paths.first().cloned().unwrap_or_default();
                let reason = format!(
                    "{} together serve no transformer: Flux takes CLIP and T5, WAN UMT5, SDXL CLIP and OpenCLIP",
                    names.join(" and ")
                );
                Err(Error::input(path, reason))
            }
        }
    }

    /// Checks that they are those that a transformer was trained with.
    ///
    /// # Errors
    /// One is missing, or of another kind.
    pub fn check(&self, transformer: &SampleModel) -> Result<()> {
        let needed = transformer.denoiser.config().text_encoders().into_iter().map(|(kind, _)| kind);
        let needed: Vec<EncoderKind> = needed.collect();
        let kinds: Vec<EncoderKind> = self.encoders.iter().map(|encoder| encoder.file.config.kind()).collect();
        if kinds == needed {
            return Ok(());
        }
        let names = |kinds: &[EncoderKind]| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(" and ");
        let files: Vec<&str> = needed.iter().filter_map(|kind| kind.file()).collect();
        let files = files.join(" and ");
        Err(Error::Prompt(format!(
            "the transformer is conditioned by {}, and {} given: name them by {}, as {files}",
            names(&needed),
            if kinds.len() == 1 { format!("{} is", names(&kinds)) } else { format!("{} are", names(&kinds)) },
            Setting::TextEncoder
        )))
    }

    /// The purpose of them together.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The encoders, each in words, with their files.
    pub fn models(&self) -> Vec<(String, &Path)> {
        self.encoders.iter().map(|encoder| (encoder.file.config.model(), encoder.file.file().file().path())).collect()
    }

    /// True if most bytes of an encoder are stored in a type that products can't take as it is.
    pub fn is_quantized(&self) -> bool {
        self.encoders.iter().any(|encoder| encoder.file.stored().is_quantized())
    }

    pub(super) fn encoders(&self) -> &[TextEncoder] {
        &self.encoders
    }

    /// True if an encoder serves for its pooled state alone.
    pub(super) fn takes_pooled_alone(&self, encoder: &TextEncoder) -> bool {
        self.purpose == Purpose::Flux && encoder.file.config.kind() == EncoderKind::Clip
    }
}

/// The models' files or folders that a path stands for, each with the folders that its tokenizer
/// may be in.
pub(crate) fn files(path: &Path) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let parts = FOLDERS.iter().map(|[model, tokenizer]| (path.join(model), path.join(tokenizer)));
    let parts: Vec<(PathBuf, Vec<PathBuf>)> = parts
        .filter(|(model, _)| model.is_dir())
        .map(|(model, tokenizer)| (model.clone(), vec![tokenizer, model]))
        .collect();
    if !parts.is_empty() {
        return parts;
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    // A part of a pipeline that is named by itself has its tokenizer beside it.
    let name = folder.file_name().unwrap_or_default();
    let beside =
        FOLDERS.iter().find(|[model, _]| name == *model).map(|[_, tokenizer]| folder.with_file_name(tokenizer));
    vec![(path.to_owned(), beside.into_iter().chain([folder.to_owned()]).collect())]
}

/// `model_max_length` of a tokenizer in one of these folders. transformers writes 1e30 for none.
fn configured_length(folders: &[PathBuf]) -> Result<Option<usize>> {
    #[derive(Deserialize)]
    struct Configured {
        model_max_length: Option<f64>,
    }
    let Some(path) = folders.iter().map(|folder| folder.join(TOKENIZER_CONFIG)).find(|path| is_there(path)) else {
        return Ok(None);
    };
    let text =
        tilewright_files::read(&path, LARGEST_CONFIG).map_err(|source| Error::Read { path: path.clone(), source })?;
    let broken = |error: serde_json::Error| Error::input(&path, format!("is broken: {}", json_fault(&error)));
    let configured: Configured = serde_json::from_slice(&text).map_err(broken)?;
    let length = configured.model_max_length.filter(|length| *length >= 1.0);
    Ok(length.map(|length| length as usize))
}

/// The tokenizer of an encoder: the file's own, one beside it, or the bundled one.
fn tokenizer(encoder: &EncoderFile, folders: &[PathBuf]) -> Result<(Tokenizer, String)> {
    let file = encoder.file().file();
    let family = match encoder.config.kind() {
        EncoderKind::Clip | EncoderKind::OpenClip => Family::Clip,
        EncoderKind::T5 => Family::T5,
        EncoderKind::Umt5 => Family::Umt5,
    };
    let rows = encoder.config.vocabulary() as usize;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error: tilewright_tokenizer::Error| {
            // The path names the file already.
            let reason = error.to_string();
            Error::input(&path, reason.strip_prefix(&format!("{JSON}: ")).map(str::to_owned).unwrap_or(reason))
        }
    };
    let own = file.names().find(|name| name.rsplit('.').next() == Some(OWN));
    if let (Some(bytes), false) = (own.and_then(|name| file.bytes(name)), family == Family::Clip) {
        return Ok((
            Tokenizer::from_sentencepiece(bytes, family, rows).map_err(at(file.path()))?,
            format!("its {OWN}"),
        ));
    }
    if let (Some(own), false) = (file.gguf_tokenizer().map_err(ModelError::from)?, family == Family::Clip) {
        let own = Gguf {
            tokens: &own.tokens,
            scores: &own.scores,
            token_type: &own.token_type,
            precompiled_charsmap: &own.precompiled_charsmap,
            unknown_token_id: own.unknown_token_id,
        };
        return Ok((Tokenizer::from_gguf(&own, family, rows).map_err(at(file.path()))?, "its own".into()));
    }
    for folder in folders {
        let (json, model) = (folder.join(JSON), folder.join(SENTENCEPIECE));
        let (tokens, merges) = (folder.join(TOKENS), folder.join(MERGES));
        let read = |path: &Path| {
            tilewright_files::read(path, LARGEST).map_err(|source| Error::Read { path: path.to_owned(), source })
        };
        if is_there(&model) && family != Family::Clip {
            let tokenizer = Tokenizer::from_sentencepiece(&read(&model)?, family, rows).map_err(at(&model))?;
            return Ok((tokenizer, model.display().to_string()));
        }
        if is_there(&json) {
            let tokenizer = Tokenizer::from_json(&read(&json)?, family, rows).map_err(at(&json))?;
            return Ok((tokenizer, json.display().to_string()));
        }
        if family == Family::Clip && is_there(&tokens) && is_there(&merges) {
            let tokenizer = Tokenizer::from_merges(&read(&tokens)?, &read(&merges)?).map_err(at(&tokens))?;
            return Ok((tokenizer, tokens.display().to_string()));
        }
    }
    Ok((Tokenizer::bundled(family)?, format!("{family}'s")))
}
