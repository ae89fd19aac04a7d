//! The bound on connections. If all slots are taken, an idle connection without a request under way
//! makes room for a new one. Some more slots are reserved for health checks, so that a load
//! balancer can ask at any time.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Slots for health checks, beyond the connections that are configured.
pub const RESERVE: usize = 8;

/// The time that an idle connection has for a request before it may be closed for a new one.
const FIRST_WORDS: Duration = Duration::from_secs(1);

/// The same, in the reserve.
const FIRST_WORDS_OF_HEALTH: Duration = Duration::from_millis(100);

/// The open connections.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    /// The most of one address.
    most_of_one: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    all: HashMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    /// The time since when it is idle; none while a request is answered.
    idle_since: Option<Instant>,
    for_health: bool,
    close: Arc<Notify>,
}

impl OpenConnections {
    /// Closes the connection that has been idle for the longest time, if that is at least `least`.
    fn evict_idle(&mut self, now: Instant, least: Duration, among: impl Fn(&Connection) -> bool) -> bool {
        let idle = self.all.iter().filter(|(_, one)| among(one)).filter_map(|(id, one)| Some((*id, one.idle_since?)));
        let longest = idle.min_by_key(|(_, since)| *since).filter(|(_, since)| now.duration_since(*since) >= least);
        let gone = longest.and_then(|(id, _)| self.all.remove(&id));
        gone.inspect(|gone| gone.close.notify_one()).is_some()
    }

    fn count(&self, among: impl Fn(&Connection) -> bool) -> usize {
        self.all.values().filter(|one| among(one)).count()
    }
}

impl Connections {
    /// Room for `most` connections at once, and `most_of_one` of one address.
    pub fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_one, open: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a new connection; none if all are taken and no connection is idle for long
    /// enough.
    pub fn acquire(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<ConnectionSlot> {
        let mut open = self.lock();
        let is_own = |one: &Connection| one.address == address && !one.for_health;
        let is_plain = |one: &Connection| !one.for_health;
        let has_room = match open.count(is_own) >= self.most_of_one {
            true => open.evict_idle(now, FIRST_WORDS, is_own),
            false => open.count(is_plain) < self.most || open.evict_idle(now, FIRST_WORDS, is_plain),
        };
        let for_health = !has_room;
        let is_reserved = |one: &Connection| one.for_health;
        if for_health && open.count(is_reserved) >= RESERVE && !open.evict_idle(now, FIRST_WORDS_OF_HEALTH, is_reserved)
        {
            return None;
        }
        let id = open.next;
        open.next += 1;
        let close = Arc::new(Notify::new());
        open.all.insert(id, Connection { address, idle_since: Some(now), for_health, close: close.clone() });
        Some(ConnectionSlot { id, for_health, close, connections: self.clone() })
    }

    fn set_idle(&self, id: u64, idle_since: Option<Instant>) {
        if let Some(one) = self.lock().all.get_mut(&id) {
            one.idle_since = idle_since;
        }
    }
}

/// The slot of a connection; free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    id: u64,
    /// True if only health checks are answered on it.
    pub for_health: bool,
    close: Arc<Notify>,
    connections: Arc<Connections>,
}

impl ConnectionSlot {
    /// Waits until the connection is closed to make room.
    pub async fn wait_for_eviction(&self) {
        self.close.notified().await;
    }

    /// Marks the connection as busy until the result is dropped.
    pub fn begin_request(&self) -> RequestGuard {
        self.connections.set_idle(self.id, None);
        RequestGuard { id: self.id, connections: self.connections.clone() }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.lock().all.remove(&self.id);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct RequestGuard {
    id: u64,
    connections: Arc<Connections>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connections.set_idle(self.id, Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn who_waits_for_nothing_gives_way_and_who_is_answered_stays() {
        let connections = Connections::new(3, 3);
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let first = connections.acquire(address(1), at(0)).unwrap();
        let second = connections.acquire(address(2), at(1)).unwrap();
        let third = connections.acquire(address(3), at(2)).unwrap();
        let guard = first.begin_request();
        // The second connection has been idle for the longest time; the first is being answered.
        let fourth = connections.acquire(address(4), at(9)).unwrap();
        assert!(!fourth.for_health);
        assert!(!connections.lock().all.contains_key(&second.id) && connections.lock().all.contains_key(&third.id));
        drop(guard);
        assert!(connections.lock().all[&first.id].idle_since.is_some());
        drop((first, third, fourth));
        assert!(connections.lock().all.is_empty());
        // A connection that was closed for another frees no other slot when it ends.
        let fifth = connections.acquire(address(5), at(10)).unwrap();
        drop(second);
        assert_eq!(connections.lock().all.len(), 1);
        drop(fifth);
    }

    #[test]
    fn where_all_are_busy_there_is_room_for_health_alone() {
        let connections = Connections::new(2, 2);
        let now = Instant::now();
        let held: Vec<_> = (0..2).map(|last| connections.acquire(address(last), now).unwrap()).collect();
        let busy: Vec<_> = held.iter().map(ConnectionSlot::begin_request).collect();
        let reserve: Vec<_> = (0..RESERVE).map(|_| connections.acquire(address(9), now).unwrap()).collect();
        assert!(reserve.iter().all(|slot| slot.for_health));
        assert!(connections.acquire(address(9), now).is_none(), "all have only just come");
        // A silent connection there gives way soon.
        let next = connections.acquire(address(9), now + FIRST_WORDS_OF_HEALTH).unwrap();
        assert!(next.for_health);
        drop(busy);
        assert!(!connections.acquire(address(9), now + Duration::from_secs(60)).unwrap().for_health);
    }

    #[test]
    fn one_address_can_not_have_them_all() {
        let connections = Connections::new(8, 2);
        let now = Instant::now();
        let own: Vec<_> = (0..2).map(|_| connections.acquire(address(1), now).unwrap()).collect();
        let _busy: Vec<_> = own.iter().map(ConnectionSlot::begin_request).collect();
        assert!(connections.acquire(address(1), now).unwrap().for_health);
        assert!(!connections.acquire(address(2), now).unwrap().for_health);
    }
}
