//! Multipart forms within bounds: bytes in all, and bytes held before a part is delivered.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::Body,
    extract::{FromRequest, Multipart, Request, multipart::Field},
    http::StatusCode,
};
use futures_util::StreamExt;

use super::extract::check_length;
use crate::problem::Problem;

/// The most bytes that may arrive without a piece of a part being delivered: headers of parts,
/// boundaries and data read ahead.
const HELD: usize = 512 << 10;

/// The most bytes of everything that is not a file.
pub const TEXTS: u64 = 256 << 10;

/// A form that is being read.
pub struct BoundedForm {
    form: Multipart,
    held: Arc<AtomicUsize>,
}

impl BoundedForm {
    /// Begins to read a form; its files may have `files` bytes in all.
    ///
    /// # Errors
    /// It is no form, or its Content-Length is too large.
    pub async fn new(request: Request, files: u64) -> Result<Self, Problem> {
        let most = files.saturating_add(TEXTS);
        check_length(request.headers(), most)?;
        let held = Arc::new(AtomicUsize::new(0));
        let counted = held.clone();
        let request = request.map(move |body| {
            let mut all = 0_u64;
            Body::from_stream(body.into_data_stream().map(move |chunk| {
                let chunk = chunk?;
                all = all.saturating_add(chunk.len() as u64);
                let held = counted.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
                match all > most || held > HELD {
                    true => Err(axum::Error::new(std::io::Error::other("a form without end"))),
                    false => Ok(chunk),
                }
            }))
        });
        let form = Multipart::from_request(request, &()).await;
        let line = "the form: expected Content-Type: multipart/form-data with a boundary";
        let form = form.map_err(|_| Problem::bad_request(line))?;
        Ok(Self { form, held })
    }

    /// The next part.
    ///
    /// # Errors
    /// The form is broken, or beyond its bounds.
    pub async fn next(&mut self) -> Result<Option<FormPart<'_>>, Problem> {
        let held = self.held.clone();
        let field = self.form.next_field().await.map_err(|error| form_problem(&error))?;
        held.store(0, Ordering::Relaxed);
        Ok(field.map(|field| FormPart { field, held }))
    }
}

/// A part of a form.
pub struct FormPart<'a> {
    field: Field<'a>,
    held: Arc<AtomicUsize>,
}

impl FormPart<'_> {
    /// The part's name; empty if it has none.
    pub fn name(&self) -> &str {
        self.field.name().unwrap_or_default()
    }

    /// True of the field for a file in which none was chosen: browsers send it with an empty name.
    pub fn has_no_file_name(&self) -> bool {
        self.field.file_name() == Some("")
    }

    /// The next piece of it.
    ///
    /// # Errors
    /// The form is broken, or beyond its bounds.
    pub async fn chunk(&mut self) -> Result<Option<axum::body::Bytes>, Problem> {
        let chunk = self.field.chunk().await.map_err(|error| form_problem(&error))?;
        self.held.store(0, Ordering::Relaxed);
        Ok(chunk)
    }

    /// Reads the whole part, of at most `most` bytes.
    ///
    /// # Errors
    /// The part is longer, or the form is broken.
    pub async fn read_all(mut self, most: u64) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > most {
                let most = tilewright_plan::bytes::display(most);
                return Err(Problem::too_large(format!("the form: a part of at most {most} is taken")));
            }
        }
        Ok(bytes)
    }

    /// Reads the whole part as text, of at most `most` bytes.
    ///
    /// # Errors
    /// The part is longer or not UTF-8, or the form is broken.
    pub async fn read_text(self, most: u64) -> Result<String, Problem> {
        let name = self.name().to_owned();
        String::from_utf8(self.read_all(most).await?).map_err(|_| Problem::invalid(format!("{name}: not UTF-8")))
    }
}

fn form_problem(error: &axum::extract::multipart::MultipartError) -> Problem {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(error.status(), "the form: larger than is taken"),
        _ => Problem::bad_request(
            "the form: its parts can't be told apart: it was cut off, took too long, or is not as RFC 7578 has it",
        ),
    }
}
