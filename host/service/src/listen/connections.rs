//! The number of connections, and the one that gives way: a connection without a request under way makes room for a new
//! one. Some more places are kept for health checks alone, so that a load balancer can ask at any time.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Places for health checks, beyond the connections that are configured.
pub const RESERVE: usize = 8;

/// The time that an idle connection has for a request before it may have to give way.
const FIRST_WORDS: Duration = Duration::from_secs(1);

/// The same, in the reserve.
const FIRST_WORDS_OF_HEALTH: Duration = Duration::from_millis(100);

/// All connections.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    /// The most of one address.
    most_of_one: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
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

impl Open {
    /// Removes the connection that has been idle for the longest time, if that is at least `least`.
    fn give_way(&mut self, now: Instant, least: Duration, among: impl Fn(&Connection) -> bool) -> bool {
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

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; none if all are taken and none can give way yet.
    pub fn take(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<Place> {
        let mut open = self.lock();
        let is_own = |one: &Connection| one.address == address && !one.for_health;
        let is_plain = |one: &Connection| !one.for_health;
        let has_room = match open.count(is_own) >= self.most_of_one {
            true => open.give_way(now, FIRST_WORDS, is_own),
            false => open.count(is_plain) < self.most || open.give_way(now, FIRST_WORDS, is_plain),
        };
        let for_health = !has_room;
        let is_reserved = |one: &Connection| one.for_health;
        if for_health && open.count(is_reserved) >= RESERVE && !open.give_way(now, FIRST_WORDS_OF_HEALTH, is_reserved) {
            return None;
        }
        let id = open.next;
        open.next += 1;
        let close = Arc::new(Notify::new());
        open.all.insert(id, Connection { address, idle_since: Some(now), for_health, close: close.clone() });
        Some(Place { id, for_health, close, connections: self.clone() })
    }

    fn set_idle(&self, id: u64, idle_since: Option<Instant>) {
        if let Some(one) = self.lock().all.get_mut(&id) {
            one.idle_since = idle_since;
        }
    }
}

/// A connection's place, free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    id: u64,
    /// Only health checks are answered there.
    pub for_health: bool,
    close: Arc<Notify>,
    connections: Arc<Connections>,
}

impl Place {
    /// Waits until the connection has to give way.
    pub async fn given_way(&self) {
        self.close.notified().await;
    }

    /// Marks a request as being answered, until the result is dropped.
    pub fn answering(&self) -> Answering {
        self.connections.set_idle(self.id, None);
        Answering { id: self.id, connections: self.connections.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().all.remove(&self.id);
    }
}

/// An answer under way.
#[derive(Debug)]
pub struct Answering {
    id: u64,
    connections: Arc<Connections>,
}

impl Drop for Answering {
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
        let first = connections.take(address(1), at(0)).unwrap();
        let second = connections.take(address(2), at(1)).unwrap();
        let third = connections.take(address(3), at(2)).unwrap();
        let answering = first.answering();
        // The second connection has been idle for the longest time; the first is being answered.
        let fourth = connections.take(address(4), at(9)).unwrap();
        assert!(!fourth.for_health);
        assert!(!connections.lock().all.contains_key(&second.id) && connections.lock().all.contains_key(&third.id));
        drop(answering);
        assert!(connections.lock().all[&first.id].idle_since.is_some());
        drop((first, third, fourth));
        assert!(connections.lock().all.is_empty());
        // A connection that gave way and ends only now frees nobody else's place.
        let fifth = connections.take(address(5), at(10)).unwrap();
        drop(second);
        assert_eq!(connections.lock().all.len(), 1);
        drop(fifth);
    }

    #[test]
    fn where_all_are_busy_there_is_room_for_health_alone() {
        let connections = Connections::new(2, 2);
        let now = Instant::now();
        let held: Vec<_> = (0..2).map(|last| connections.take(address(last), now).unwrap()).collect();
        let busy: Vec<_> = held.iter().map(Place::answering).collect();
        let reserve: Vec<_> = (0..RESERVE).map(|_| connections.take(address(9), now).unwrap()).collect();
        assert!(reserve.iter().all(|place| place.for_health));
        assert!(connections.take(address(9), now).is_none(), "all have only just come");
        // A silent connection there gives way soon.
        let next = connections.take(address(9), now + FIRST_WORDS_OF_HEALTH).unwrap();
        assert!(next.for_health);
        drop(busy);
        assert!(!connections.take(address(9), now + Duration::from_secs(60)).unwrap().for_health);
    }

    #[test]
    fn one_address_can_not_have_them_all() {
        let connections = Connections::new(8, 2);
        let now = Instant::now();
        let own: Vec<_> = (0..2).map(|_| connections.take(address(1), now).unwrap()).collect();
        let _busy: Vec<_> = own.iter().map(Place::answering).collect();
        assert!(connections.take(address(1), now).unwrap().for_health);
        assert!(!connections.take(address(2), now).unwrap().for_health);
    }
}
