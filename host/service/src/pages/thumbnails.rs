//! Small pictures of results, for lists. Each is made when it is first asked for, and kept beside
//! its result.

use std::{
    fs::File,
    io::Read,
    path::Path,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use axum::{
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use tilewright_media::{Filter, Preview, picture_bytes, read_picture, resize};
use tilewright_service_api::JobState;

use crate::{
    api::{Answer, KEPT, PathName, Validators},
    app::App,
    problem::{ApiResult, Problem},
    state::ServerState,
};

/// Pixels of the longer side.
const SIDE: u32 = 320;

/// The most bytes of pixels that a result may have to be made small.
const MOST_BYTES: u64 = 1 << 30;

/// Held while one is made: a list of many makes one after the other, so that no more than one
/// result is held in memory.
static MAKING: Mutex<()> = Mutex::new(());

/// The thumbnail of a job's first result. Like its result it never changes.
pub async fn get(
    State(app): State<App>,
    PathName(id): PathName,
    method: Method,
    asked: HeaderMap,
) -> ApiResult<Response> {
    let name = format!("{id}.thumbnail");
    let found = app.blocking(move |app| find(&app.server, &id)).await?;
    let Thumbnail { picture, modified } = found.ok_or_else(|| Problem::not_found("no picture to show"))?;
    let validators = Validators::new(&name, modified);
    let headers = (validators.headers(), [(header::CACHE_CONTROL, KEPT)]);
    let size = picture.len() as u64;
    Ok(match validators.answer(&method, &asked, size) {
        Answer::NotModified => (StatusCode::NOT_MODIFIED, headers).into_response(),
        Answer::NotTheSame => {
            let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "the thumbnail has another tag");
            (headers, problem).into_response()
        }
        // No part of so small a picture is given: a server may ignore ranges.
        Answer::Whole | Answer::Part(_) | Answer::NoSuchPart => {
            (headers, [(header::CONTENT_TYPE, "image/png")], picture).into_response()
        }
    })
}

/// A thumbnail's file.
struct Thumbnail {
    picture: Vec<u8>,
    modified: SystemTime,
}

impl Thumbnail {
    /// Reads a file; none if it is not there.
    fn read(place: &Path) -> Option<Self> {
        let mut file = File::open(place).ok()?;
        let modified = file.metadata().and_then(|facts| facts.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut picture = Vec::new();
        file.read_to_end(&mut picture).ok()?;
        Some(Self { picture, modified })
    }
}

fn find(server: &ServerState, id: &str) -> ApiResult<Option<Thumbnail>> {
    // The id is a job's, and so no path of anybody's making.
    let Some(stored) = server.jobs.store.get(id)? else { return Ok(None) };
    let job = &stored.job;
    let is_picture = job.results.first().is_some_and(|file| file.content_type.starts_with("image/"));
    if job.state != JobState::Done || !is_picture {
        return Ok(None);
    }
    let place = server.jobs.files.thumbnail(&job.id);
    if let Some(known) = Thumbnail::read(&place) {
        return Ok(Some(known));
    }
    let results = server.jobs.files.results(&job.id, job.format.ending(), job.batch);
    let Some(result) = results.first() else { return Ok(None) };
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = make(result, &place) {
        // A result that is no longer there has none either.
        tracing::debug!(%error, job = job.id, "no thumbnail");
    }
    Ok(Thumbnail::read(&place))
}

fn make(result: &Path, place: &Path) -> tilewright_media::Result<()> {
    if place.is_file() || picture_bytes(result)? > MOST_BYTES {
        return Ok(());
    }
    let (frame, _) = read_picture(result)?;
    let longer = frame.width.max(frame.height).max(1);
    let to = |side: u32| match longer > SIDE {
        true => (u64::from(side) * u64::from(SIDE) / u64::from(longer)).max(1) as u32,
        false => side,
    };
    let small = resize(&frame, to(frame.width), to(frame.height), Filter::Bicubic);
    Preview::new(place)?.show(&small, &Vec::new())
}
