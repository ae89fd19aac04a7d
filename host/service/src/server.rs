//! The start of a server from its configuration, its loops, and its end.

use std::{
    io::Read,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn_with_state, map_request},
};
use tilewright_config::{Address, Config, ConfigSource};
use tilewright_policy::CacheDir;
use tilewright_rollout::{Disk, Rollout};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{Notify, Semaphore, watch as watched},
};
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::{
    Error, Result, api,
    app::App,
    auth::AccessControl,
    clock,
    config_state::ConfigState,
    descriptors,
    device::{self, Devices, IdleWorker},
    error::one_line,
    job_traces::JobTraces,
    jobs::{Jobs, files::JobFiles, store::JobStore},
    last_exit,
    listen::Listener,
    metrics::Metrics,
    middleware::{record_http_metrics, require_auth},
    models::Models,
    pages, request_body,
    state::{LostDevice, ServerState},
    watch::{self, Credentials, WatchEvent},
    work,
};

/// The longest pause within a request's body.
const BODY_PAUSE: Duration = Duration::from_secs(15);

/// The time between two clean-ups.
const CLEANING: Duration = Duration::from_secs(60);

/// The time between two moments by both clocks that are kept.
const KEEPING: Duration = Duration::from_secs(10);

/// The time between two checks for passed deadlines.
const SWEEPING: Duration = Duration::from_secs(1);

/// The time between reporting the end at `/readyz` and taking no more connections.
const DRAIN: Duration = Duration::from_secs(1);

/// The time that jobs at work have when the server ends. They begin again after the next start if
/// it is too short.
const GRACE: Duration = Duration::from_secs(20);

/// Modules that are compiled and checked at once.
const CONCURRENT_GATES: usize = 2;

/// The options of a server.
pub struct Options {
    /// The configuration's file.
    pub place: ConfigSource,
    /// The configuration.
    pub config: Config,
    /// The address to listen on instead of the configured one.
    pub listen: Option<Address>,
    /// The folder of compiled policies.
    pub cache: CacheDir,
    /// Standard input, if the server ends when that does, and at once: whoever holds its other end
    /// is all that it serves.
    pub until_input_ends: Option<Arc<StandardInput>>,
    /// Called with the address when the server listens.
    pub ready: Box<dyn FnOnce(Address) + Send>,
}

/// Serves until SIGINT or SIGTERM. Jobs at work have some time to end then; the others wait for the
/// next start.
///
/// # Errors
/// The reason that it can't start.
pub fn serve(options: Options) -> Result<()> {
    descriptors::raise_limit();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).thread_name("requests").enable_all().build();
    let runtime = runtime.map_err(|source| Error::File { path: "a thread".into(), verb: "started", source })?;
    let Options { place, mut config, listen, cache, until_input_ends, ready } = options;
    let is_listening_elsewhere = listen.is_some();
    if let Some(listen) = listen {
        config.server.listen = listen;
    }
    let shipped: Vec<&str> = tilewright_policy::shipped_names().collect();
    config.check(&shipped)?;
    config.check_presence()?;
    let settings = config.server.clone();
    let auth = Arc::new(AccessControl::new(&settings)?);
    // Before anything that takes long: an address in use is reported at once.
    let listener = runtime.block_on(Listener::bind(&settings))?;
    let (server, ready_devices) = build_state(place, config, cache, is_listening_elsewhere)?;
    let server = Arc::new(server);
    let workers: Vec<_> = ready_devices
        .into_iter()
        .map(|device| {
            let (server, state) = (server.clone(), device.device.clone());
            device.begin(move || work::run_worker(&server, &state))
        })
        .collect();
    let credentials = Credentials { auth: auth.clone(), certificates: listener.certificates() };
    let (events, watching) = watch::spawn_watcher(server.clone(), credentials);
    let (ending, end) = watched::channel(false);
    let app = App {
        server: server.clone(),
        auth,
        notices: Arc::default(),
        inspections: Arc::default(),
        gates: Arc::new(Semaphore::new(CONCURRENT_GATES)),
        end,
    };
    let address = listener.address().map_err(|source| Error::Listen { address: settings.listen, source })?;
    let input = until_input_ends.unwrap_or_default();
    runtime.block_on(async {
        let signals = Signals::new(input.clone())?;
        tokio::spawn(signals.run(server.clone(), events.clone(), ending));
        tokio::spawn(cleanup_loop(app.clone()));
        ready(address.clone());
        tracing::info!(%address, "listening");
        listener.serve(router(app.clone()), app.wait_for_end()).await;
        Ok::<(), Error>(())
    })?;
    server.begin_draining();
    let _ = events.send(WatchEvent::End);
    server.devices.iter().for_each(|device| device.queue.close());
    let until = Instant::now() + if input.has_ended() { Duration::ZERO } else { GRACE };
    while workers.iter().any(|worker| !worker.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    if workers.iter().any(|worker| !worker.is_finished()) {
        tracing::warn!("jobs at work are left: they begin anew after the next start");
    }
    // A watcher that waits for a registry is left.
    while watching.as_ref().is_some_and(|watching| !watching.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    server.lost.reason().map_or(Ok(()), |reason| Err(Error::LostDevice(reason.to_owned())))
}

/// Opens data, models, devices and policies, and restores the jobs that had not ended.
fn build_state(
    place: ConfigSource,
    config: Config,
    cache: CacheDir,
    is_listening_elsewhere: bool,
) -> Result<(ServerState, Vec<IdleWorker>)> {
    let data = config.server.data_folder().ok_or(Error::NoHome)?;
    let disk = Disk::new();
    let store =
        JobFiles::create_folder(&data, &disk).and_then(|()| JobStore::open(&data.join("jobs.sqlite"), disk.clone()))?;
    // Before anything is accepted, ended or found to be late.
    clock::begin(store.kept_clock()?, store.last_ms()?);
    // The database's lock shows that no other server works here.
    let files = JobFiles::open(&data, disk.clone())?;
    // Before policies are compiled: their sandbox, installed later, passes on the signals that are
    // not its own.
    let crash = last_exit::detect_crash(&data);
    let models = Models::open(&config)?;
    let metrics = Arc::new(Metrics::new()?);
    let counting = metrics.clone();
    let rollout = Rollout::open(
        &data,
        disk.clone(),
        &store.revisions()?,
        &config,
        cache,
        Box::new(move |event| {
            counting.count_event(event);
            tracing::info!(what = ?event.what, policy = event.policy, route = event.route, revision = event.revision, "{}", event.detail);
        }),
    );
    // A missing file whose policy was in force before does not stop the start; otherwise the
    // configuration's error is the better one, since it names the line.
    let rollout =
        rollout.map_err(|error| config.check_presence_of_policies().err().map_or_else(|| error.into(), Error::from))?;
    let workers = device::open(&config)?;
    let devices: Devices = workers.iter().map(|worker| worker.device.clone()).collect();
    models.set_budgets(&config, &devices);
    let server = ServerState {
        config: ConfigState::new(place, config, is_listening_elsewhere),
        rollout,
        jobs: Jobs::new(store, files, devices.clone(), metrics.clone()),
        traces: JobTraces::default(),
        devices,
        models,
        disk,
        metrics,
        profiler: Mutex::default(),
        started: Instant::now(),
        draining: AtomicBool::new(false),
        lost: LostDevice::default(),
    };
    server.jobs.forget_strays()?;
    server.jobs.restore(crash.as_deref())?;
    server.check_disk();
    Ok((server, workers))
}

/// Every route, with the layers around it.
fn router(app: App) -> Router {
    api::router()
        .merge(pages::router())
        .fallback(api::not_found)
        .method_not_allowed_fallback(api::method_not_allowed)
        // Each handler limits the body that it reads.
        .layer(DefaultBodyLimit::disable())
        .layer(RequestBodyTimeoutLayer::new(BODY_PAUSE))
        .layer(map_request(request_body::limit_pace))
        .layer(from_fn_with_state(app.clone(), record_http_metrics))
        .layer(from_fn_with_state(app.clone(), require_auth))
        .with_state(app)
}

/// Standard input, whose other end somebody holds.
#[derive(Debug, Default)]
pub struct StandardInput {
    has_ended: AtomicBool,
    end: Notify,
}

impl StandardInput {
    /// Watches it from now on, so that its end is known even if the server never listens.
    pub fn watch() -> Arc<Self> {
        let input = Arc::<Self>::default();
        let watched = input.clone();
        std::thread::spawn(move || watched.await_end());
        input
    }

    /// True if it has ended: nobody holds its other end.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Waits until it ends, whatever is written to it.
    fn await_end(&self) {
        let mut ignored = [0; 256];
        let mut input = std::io::stdin().lock();
        while match input.read(&mut ignored) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == std::io::ErrorKind::Interrupted,
        } {}
        self.has_ended.store(true, Ordering::Release);
        self.end.notify_one();
    }
}

/// The signals that the system sends, and the end of standard input where that counts.
struct Signals {
    input: Arc<StandardInput>,
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new(input: Arc<StandardInput>) -> Result<Self> {
        let open = |kind| signal(kind).map_err(|source| Error::File { path: "signals".into(), verb: "heard", source });
        Ok(Self {
            input,
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
            hang_up: open(SignalKind::hangup())?,
        })
    }

    async fn run(
        mut self,
        server: Arc<ServerState>,
        events: std::sync::mpsc::Sender<WatchEvent>,
        ending: watched::Sender<bool>,
    ) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => break,
                _ = self.hang_up.recv() => { let _ = events.send(WatchEvent::Reload); }
                () = server.lost.wait() => break,
                // Nobody is left who could read an answer.
                () = self.input.end.notified() => {
                    let _ = ending.send(true);
                    return;
                }
            }
        }
        tracing::info!("ending");
        // A load balancer learns it from `/readyz`; a second signal ends the server at once.
        server.begin_draining();
        server.jobs.live.notify_change();
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = tokio::time::sleep(DRAIN) => {}
        }
        let _ = ending.send(true);
    }
}

/// Checks the disk and deadlines every second, keeps the clocks' times every ten and at the end,
/// and cleans up every minute.
async fn cleanup_loop(app: App) {
    let ended = app.wait_for_end();
    tokio::pin!(ended);
    let mut last_cleanup = Instant::now();
    let mut last_kept: Option<Instant> = None;
    loop {
        let ends = tokio::select! {
            () = &mut ended => true,
            () = tokio::time::sleep(SWEEPING) => false,
        };
        if ends || last_kept.is_none_or(|kept| kept.elapsed() >= KEEPING) {
            last_kept = Some(Instant::now());
            let server = app.server.clone();
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || server.jobs.store.keep_clock()).await {
                tracing::warn!(error = one_line(&error), "the time can't be kept");
            }
        }
        if ends {
            return;
        }
        let is_due = last_cleanup.elapsed() >= CLEANING;
        if is_due {
            app.auth.forget_idle_addresses();
            last_cleanup = Instant::now();
        }
        let server = app.server.clone();
        let done = tokio::task::spawn_blocking(move || {
            server.check_disk();
            server.jobs.expire_overdue().and_then(|()| if is_due { server.clean_up() } else { Ok(()) })
        })
        .await;
        if let Ok(Err(error)) = done {
            tracing::warn!(error = one_line(&error), "what is no longer kept can't be removed");
        }
    }
}
