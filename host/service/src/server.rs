//! From a configuration to a server at work, and to its end.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    middleware::{Next, from_fn_with_state, map_request},
    response::Response,
};
use tilewright_config::{Config, ConfigSource};
use tilewright_policy::CacheDir;
use tilewright_rollout::{Disk, Rollout};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, watch as watched},
};
use tower_http::timeout::RequestBodyTimeoutLayer;
use tracing::Instrument;

use crate::{
    App, Error, Result, api, bodies, death, descriptors, device,
    door::{Door, guard},
    error::one_line,
    house::House,
    jobs::{files::Files, live::Live, store::Store},
    listen::Listener,
    metrics::Metrics,
    models::{self, Models},
    pages,
    story::Stories,
    watch::{self, Credentials, Told},
    work,
};

/// The longest pause within a request's body.
const BODY: Duration = Duration::from_secs(15);

/// How often what is no longer kept is removed.
const CLEANING: Duration = Duration::from_secs(60);

/// How often deadlines of jobs that wait are looked at.
const SWEEPING: Duration = Duration::from_secs(1);

/// Between saying that the server ends and taking no more connections.
const DRAIN: Duration = Duration::from_secs(1);

/// For jobs at work when the server ends; they begin anew after the next start.
const GRACE: Duration = Duration::from_secs(20);

/// Modules that are compiled and checked at once.
const GATES: usize = 2;

/// How a server is started.
pub struct Options {
    /// Where the configuration stands.
    pub place: ConfigSource,
    /// What it says.
    pub config: Config,
    /// Listens here instead of where the configuration says.
    pub listen: Option<SocketAddr>,
    /// Where compiled policies are kept.
    pub cache: CacheDir,
    /// Hears where the server listens, once it does.
    pub ready: Box<dyn FnOnce(SocketAddr) + Send>,
}

/// Serves until SIGINT or SIGTERM. Jobs at work have some time to end then; the others wait for the next start.
///
/// # Errors
/// Why it can't start.
pub fn serve(options: Options) -> Result<()> {
    descriptors::raise();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).thread_name("requests").enable_all().build();
    let runtime = runtime.map_err(|source| Error::File { path: "a thread".into(), verb: "started", source })?;
    let Options { place, mut config, listen, cache, ready } = options;
    let is_listening_elsewhere = listen.is_some();
    if let Some(listen) = listen {
        config.server.listen = listen;
    }
    let shipped: Vec<&str> = tilewright_policy::shipped_names().collect();
    config.check(&shipped)?;
    config.check_presence()?;
    let server = config.server.clone();
    let door = Arc::new(Door::new(&server)?);
    // Before anything that takes long: an address in use is a mistake to be told of at once.
    let listener = runtime.block_on(Listener::bind(&server))?;
    let (house, ready_devices) = furnished(place, config, cache, is_listening_elsewhere)?;
    let house = Arc::new(house);
    let workers: Vec<_> = ready_devices
        .into_iter()
        .map(|device| {
            let house = house.clone();
            device.begin(move |worker| work::run(&house, &worker))
        })
        .collect();
    let credentials = Credentials { door: door.clone(), certificates: listener.certificates() };
    let (telling, watching) = watch::begin(house.clone(), credentials);
    let (ending, end) = watched::channel(false);
    let app = App {
        house: house.clone(),
        door,
        notices: Arc::default(),
        looks: Arc::default(),
        gates: Arc::new(Semaphore::new(GATES)),
        end,
    };
    let address = listener.address().map_err(|source| Error::Listen { address: server.listen, source })?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        tokio::spawn(signals.heard(house.clone(), telling.clone(), ending));
        tokio::spawn(cleaned(app.clone()));
        ready(address);
        tracing::info!(%address, "listening");
        listener.serve(router(app.clone()), app.ended()).await;
        Ok::<(), Error>(())
    })?;
    house.draining.store(true, Ordering::Release);
    let _ = telling.send(Told::End);
    house.devices.iter().for_each(|device| device.queue.close());
    let until = Instant::now() + GRACE;
    while workers.iter().any(|worker| !worker.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    if workers.iter().any(|worker| !worker.is_finished()) {
        tracing::warn!("jobs at work are left: they begin anew after the next start");
    }
    // One that waits for a registry is left.
    while watching.as_ref().is_some_and(|watching| !watching.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// Opens everything: data, models, devices, policies, and the jobs that had not ended.
fn furnished(
    place: ConfigSource,
    config: Config,
    cache: CacheDir,
    is_listening_elsewhere: bool,
) -> Result<(House, Vec<device::Ready>)> {
    let data = config.server.data_folder().ok_or(Error::Homeless)?;
    let disk = Disk::new();
    let store = Files::folder(&data, &disk).and_then(|()| Store::open(&data.join("jobs.sqlite"), disk.clone()))?;
    // Now that nobody else works here.
    let files = Files::open(&data, disk.clone())?;
    // Before policies are compiled: their sandbox, installed later, passes on the signals that are not its own.
    let crash = death::cause(&data);
    let models = models::open(&config, &Models::new())?;
    let metrics =
        Metrics::new().map_err(|error| Error::Traces { endpoint: "/metrics".into(), reason: error.to_string() })?;
    let metrics = Arc::new(metrics);
    let counting = metrics.clone();
    let rollout = Rollout::open(
        &data,
        disk.clone(),
        &store.revisions()?,
        &config,
        cache,
        Box::new(move |event| {
            counting.happened(event);
            tracing::info!(what = ?event.what, policy = event.policy, route = event.route, revision = event.revision, "{}", event.detail);
        }),
    );
    // A missing file whose policy was in force before does not stop the start; otherwise the configuration's error is
    // the better one, since it names the line.
    let rollout =
        rollout.map_err(|error| config.check_presence_of_policies().err().map_or_else(|| error.into(), Error::from))?;
    let devices = device::open(&config)?;
    let house = House {
        place,
        config_at_start: config.clone(),
        is_listening_elsewhere,
        deadlines: Mutex::default(),
        config: ArcSwap::from_pointee(config),
        rollout,
        store,
        files,
        disk,
        live: Live::default(),
        stories: Stories::default(),
        devices: devices.iter().map(|ready| ready.device.clone()).collect(),
        models: ArcSwap::from_pointee(models),
        metrics,
        assignments: Mutex::new(HashMap::new()),
        dumps: data.join("dumps"),
        started: SystemTime::now(),
        suspect: Mutex::default(),
        draining: AtomicBool::new(false),
        config_fault: Mutex::new(None),
    };
    house.forget_strays()?;
    house.restore(crash.as_deref())?;
    house.look_at_disk();
    Ok((house, devices))
}

/// Every route, behind the door.
fn router(app: App) -> Router {
    api::router()
        .merge(pages::router())
        .fallback(api::nowhere)
        .method_not_allowed_fallback(api::not_so)
        // Bodies are limited where they are read, each by what it is.
        .layer(DefaultBodyLimit::disable())
        .layer(RequestBodyTimeoutLayer::new(BODY))
        .layer(map_request(bodies::paced))
        .layer(from_fn_with_state(app.clone(), measured))
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

/// Counts a request, and traces it.
async fn measured(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    // The route's path, not the caller's: there are only so many.
    let path = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];
    let method = known.iter().find(|known| **known == request.method().as_str()).copied().unwrap_or("other");
    let span = tracing::info_span!("request", method, path, status = tracing::field::Empty);
    let response = next.run(request).instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    app.house.metrics.answered(method, &path, response.status().as_u16(), started.elapsed());
    response
}

/// What the system asks for.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let open = |kind| signal(kind).map_err(|source| Error::File { path: "signals".into(), verb: "heard", source });
        Ok(Self {
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
            hang_up: open(SignalKind::hangup())?,
        })
    }

    async fn heard(mut self, house: Arc<House>, telling: std::sync::mpsc::Sender<Told>, ending: watched::Sender<bool>) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => break,
                _ = self.hang_up.recv() => { let _ = telling.send(Told::Reload); }
            }
        }
        tracing::info!("ending");
        // Whoever shares out work hears of it from /readyz; a second signal ends at once.
        house.draining.store(true, Ordering::Release);
        house.live.touch();
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = tokio::time::sleep(DRAIN) => {}
        }
        let _ = ending.send(true);
    }
}

/// Removes what is no longer kept, now and then.
async fn cleaned(app: App) {
    let ended = app.ended();
    tokio::pin!(ended);
    let mut cleaned = Instant::now();
    loop {
        tokio::select! {
            () = &mut ended => return,
            () = tokio::time::sleep(SWEEPING) => {}
        }
        let is_due = cleaned.elapsed() >= CLEANING;
        if is_due {
            app.door.forget_idle();
            cleaned = Instant::now();
        }
        let house = app.house.clone();
        let done = tokio::task::spawn_blocking(move || {
            house.look_at_disk();
            house.expire().and_then(|()| if is_due { house.clean() } else { Ok(()) })
        })
        .await;
        if let Ok(Err(error)) = done {
            tracing::warn!(error = one_line(&error), "what is no longer kept can't be removed");
        }
    }
}
