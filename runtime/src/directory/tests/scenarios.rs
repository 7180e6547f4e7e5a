//! The directory's scenarios, each by name. Those with a variant run once without it and once with:
//! the variant must make the outcome another.

use std::sync::Arc;
use std::time::Duration;

use siloring_core::limits::{
    CLAIM_JITTER_MAX, CLAIM_LEASE, DIRECTORY_RESEND_AFTER, RECOVERY_ACCUSE_AFTER,
    RECOVERY_RELAY_AFTER, TOMBSTONE_TIME,
};
use siloring_core::ring::Ring;
use siloring_core::{
    Address, ClaimNumber, Endpoint, Generation, Moment, ShardIndex, SiloStatus, ViewNumber,
};

use super::world::{Answer, PROMPT, World};
use crate::directory::message::{Ask, Tell, Word};
use crate::directory::span::Key;
use crate::directory::{
    Defect, Directory, DirectoryConfig, DirectoryMessage, DirectoryOutput, Lookup, Place, Planted,
    TakeOver,
};

const SOUND: Planted = Planted::NONE;
const SECOND: Duration = Duration::from_secs(1);

fn first(silo: Generation) -> Endpoint {
    Endpoint { silo, shard: ShardIndex(0) }
}

/// A settled world of three silos of one shard each, and their shards.
fn three(planted: Planted) -> (World, [Endpoint; 3]) {
    let world = World::settled(3, 1, planted);
    let silos = world.silos(SiloStatus::Active);
    (world, [first(silos[0]), first(silos[1]), first(silos[2])])
}

fn grains(count: usize) -> Vec<Address> {
    (0..count).map(|index| Address::of("room", &format!("{index}")).unwrap()).collect()
}

/// Registers grains all over the silos.
fn populate(world: &mut World, count: usize) -> Vec<(Address, Endpoint)> {
    let hosts = world.endpoints();
    let all: Vec<_> = grains(count).into_iter().zip(hosts.into_iter().cycle()).collect();
    for (address, host) in &all {
        world.register(*host, address);
    }
    world.run_for(SECOND);
    all
}

/// Each grain is found at its host, unless that is gone.
fn assert_found(world: &mut World, grains: &[(Address, Endpoint)]) {
    let from = world.endpoints()[0];
    for (address, host) in grains {
        let found = world.find(from, address).map(|place| place.endpoint);
        let expected = Some(*host).filter(|host| world.lives(host.silo));
        assert_eq!(found, expected, "{address}");
    }
    world.assert_sound();
}

fn told<T>(world: &World, at: Endpoint, pick: impl Fn(&DirectoryOutput) -> Option<T>) -> Vec<T> {
    world.told.iter().filter(|(who, _)| *who == at).filter_map(|(_, output)| pick(output)).collect()
}

fn is_lost(output: &DirectoryOutput) -> Option<Place> {
    if let DirectoryOutput::RegistrationLost { winner: place, .. }
    | DirectoryOutput::ClaimLost { holder: place, .. } = output
    {
        return Some(*place);
    }
    None
}

fn is_refused(output: &DirectoryOutput) -> Option<Place> {
    if let DirectoryOutput::ClaimRefused { holder, .. } = output {
        return Some(*holder);
    }
    None
}

fn is_claimed(output: &DirectoryOutput) -> Option<ClaimNumber> {
    if let DirectoryOutput::Claimed { number, .. } = output {
        return Some(*number);
    }
    None
}

// ---- ranges

/// D1. The owner of a range drains, or dies, while it is asked.
#[test]
fn a_lookup_while_the_owner_leaves_ends_with_the_truth() {
    for dies in [false, true] {
        let (mut world, [owner, host, asker]) = three(SOUND);
        let address = world.address_at(owner);
        world.register(host, &address);
        world.run_for(SECOND);
        world.told.clear();
        assert_eq!(world.lookup(asker, &address), Lookup::Pending);
        if dies {
            world.kill_and_bury(owner.silo);
        } else {
            world.set(owner.silo, SiloStatus::Draining);
        }
        world.run_for(SECOND);
        let found = world.located(asker, &address).place().map(|place| place.endpoint);
        assert_eq!(found, Some(host), "dies: {dies}");
        world.assert_sound();
    }
}

/// D2, in part: the sweep has the rest.
#[test]
fn losing_a_directory_owner_ends_no_activation() {
    let (mut world, [owner, ..]) = three(SOUND);
    let grains = populate(&mut world, 60);
    world.told.clear();
    world.kill_and_bury(owner.silo);
    world.run_for(2 * SECOND);
    assert!(world.told.iter().all(|(_, output)| is_lost(output).is_none()));
    world.assert_whole();
    assert_found(&mut world, &grains);
    world.check_rest();
    world.assert_sound();
}

/// D3. Two homes of one address come up in a recovery.
#[test]
fn of_two_homes_found_in_recovery_the_newest_wins_and_the_other_is_told() {
    let (mut world, [owner, early, late]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(early, &address);
    world.run_for(SECOND);
    world.drop_entry(&address);
    world.publish();
    world.run_for(SECOND);
    world.register(late, &address);
    world.run_for(SECOND);
    assert_eq!(world.holders(address.hash()).len(), 2, "two believe to be its home");
    world.told.clear();
    world.kill_and_bury(owner.silo);
    world.run_for(2 * SECOND);
    let winner = world.holders(address.hash());
    assert_eq!(winner.iter().map(|place| place.endpoint).collect::<Vec<_>>(), vec![late]);
    assert_eq!(told(&world, early, is_lost), winner, "the loser knows where to forward");
    assert_eq!(world.find(early, &address), winner.first().copied());
    world.check_rest();
    world.assert_sound();
}

/// D4, F59. What a refused caller finds when it asks again; the variant keeps the stale place.
fn after_a_refusal(planted: Planted) -> Option<Endpoint> {
    let (mut world, [owner, old, new]) = three(planted);
    let address = world.address_at(owner);
    world.register(old, &address);
    world.run_for(SECOND);
    let stale = world.find(new, &address).unwrap();
    world.unregister(old, &address);
    world.run_for(SECOND);
    world.register(new, &address);
    world.run_for(SECOND);
    assert_eq!(world.lookup(new, &address), Lookup::Cached(stale), "nobody has told it yet");
    world.at(new, |directory, now| {
        directory.refused(now, &address, stale);
    });
    match world.lookup(new, &address) {
        Lookup::Cached(place) => Some(place.endpoint),
        Lookup::Pending => {
            world.told.clear();
            world.run_for(SECOND);
            Some(world.located(new, &address).place().unwrap().endpoint)
        }
    }
    .filter(|found| *found == new)
}

#[test]
fn a_stale_place_costs_one_forward_and_is_corrected() {
    assert!(after_a_refusal(SOUND).is_some());
    assert!(after_a_refusal(Planted::with(Defect::CacheKeptOnRefusal)).is_none());
}

#[test]
fn a_redirection_corrects_the_cache_and_an_older_one_does_not() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    let place = world.find(asker, &address).unwrap();
    let mut newer = place;
    newer.number.counter += 1;
    world.at(asker, |directory, _| directory.learn(address.hash(), newer));
    world.at(asker, |directory, _| directory.learn(address.hash(), place));
    assert_eq!(world.lookup(asker, &address), Lookup::Cached(newer));
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Giver,
    Taker,
    Both,
}

/// D5, F57, F58. A newcomer takes ranges over; somebody dies when so many pieces have passed.
fn die_after(pieces: u64, victim: Victim) -> bool {
    let (mut world, [giver, ..]) = three(SOUND);
    let grains = populate(&mut world, 240);
    let silo = world.join();
    world.run_for(SECOND);
    world.set(silo, SiloStatus::Active);
    let before = world.said.get("piece").copied().unwrap_or(0);
    let passed = |world: &World| world.said.get("piece").copied().unwrap_or(0) >= before + pieces;
    let is_interrupted = world.run_until(2 * SECOND, passed);
    if victim != Victim::Taker {
        world.kill_and_bury(giver.silo);
    }
    if victim != Victim::Giver {
        world.kill_and_bury(silo);
    }
    world.run_for(3 * SECOND);
    world.assert_whole();
    world.check_rest();
    assert_found(&mut world, &grains);
    is_interrupted
}

#[test]
fn a_hand_over_is_whole_afterwards_whoever_dies_at_whichever_piece() {
    for victim in [Victim::Giver, Victim::Taker, Victim::Both] {
        for pieces in (0..44).step_by(4) {
            assert!(die_after(pieces, victim), "{victim:?} died after {pieces} pieces");
        }
    }
}

/// D5. One silo cannot be reached by the asker only.
#[test]
fn a_silo_that_only_the_asker_cannot_reach_is_asked_through_a_third() {
    let (mut world, [owner, deaf, asker]) = three(SOUND);
    let fourth = world.join();
    world.set(fourth, SiloStatus::Active);
    world.run_for(2 * SECOND);
    let grains = populate(&mut world, 60);
    for endpoint in [asker.silo, fourth] {
        world.block(deaf.silo, endpoint);
    }
    world.blocked.retain(|pair| !matches!(pair, (a, b) if *a == fourth || *b == fourth));
    world.kill_and_bury(owner.silo);
    world.run_for(RECOVERY_RELAY_AFTER);
    assert!(!world.said.contains_key("relay"), "not before its time");
    world.run_for(SECOND);
    assert!(world.said["relay"] > 0);
    world.assert_whole();
    assert!(world.accused.is_empty(), "who answers through a third is not accused");
    world.blocked.clear();
    assert_found(&mut world, &grains);
}

/// D5, FAULTS defect 5. A dead silo that is not yet known to be dead keeps ranges closed.
#[test]
fn a_range_stays_closed_until_the_silent_silo_is_accused_and_dead() {
    let (mut world, [owner, silent, asker]) = three(SOUND);
    let grains = populate(&mut world, 60);
    world.kill(silent.silo);
    world.kill_and_bury(owner.silo);
    world.run_for(RECOVERY_ACCUSE_AFTER.saturating_sub(SECOND));
    assert!(world.accused.is_empty());
    let (address, _) = grains
        .iter()
        .find(|(address, host)| {
            *host == asker
                && world.view.ring().owner(Key::of(address.hash()).position()) == Some(asker)
        })
        .unwrap();
    assert_eq!(world.lookup(asker, address), Lookup::Pending);
    world.run_for(2 * SECOND);
    assert_eq!(world.located(asker, address), Answer::Open, "it waits: never a guess");
    assert_eq!(world.accused.iter().copied().collect::<Vec<_>>(), vec![silent.silo]);
    world.set(silent.silo, SiloStatus::Dead);
    world.run_for(SECOND);
    assert_eq!(world.located(asker, address).place().map(|p| p.endpoint), Some(asker));
    world.assert_whole();
    assert_found(&mut world, &grains);
}

#[test]
fn a_draining_silo_hands_everything_over_keeps_its_activations_and_says_so() {
    let (mut world, [leaver, ..]) = three(SOUND);
    let grains = populate(&mut world, 60);
    world.at(leaver, |directory, _| directory.begin_drain());
    world.run_for(SECOND);
    assert!(world.handed_over.is_empty(), "not before it is Draining");
    world.set(leaver.silo, SiloStatus::Draining);
    world.run_for(SECOND);
    assert!(world.handed_over.contains(&leaver));
    assert_eq!(world.usage(leaver).entries, 0);
    world.assert_whole();
    assert_found(&mut world, &grains);
    let other = world.silos(SiloStatus::Active)[0];
    world.kill_and_bury(other);
    world.run_for(SECOND);
    assert_found(&mut world, &grains);
}

#[test]
fn a_cluster_of_one_has_nobody_to_hand_over_to() {
    let mut world = World::settled(1, 2, SOUND);
    let silo = world.silos(SiloStatus::Active)[0];
    populate(&mut world, 10);
    for endpoint in world.endpoints() {
        world.at(endpoint, |directory, _| directory.begin_drain());
    }
    world.set(silo, SiloStatus::Draining);
    world.run_for(SECOND);
    assert_eq!(world.handed_over.len(), 2);
}

/// F62.
#[test]
fn an_older_caller_is_told_the_newer_view_and_a_newer_caller_waits_for_the_owner() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    for behind in [asker, owner] {
        world.blind.insert(behind.silo);
        world.publish();
        world.run_for(SECOND);
        world.at(asker, |directory, _| directory.forget(address.hash(), None));
        world.told.clear();
        world.lookup(asker, &address);
        world.run_for(SECOND);
        assert_eq!(world.located(asker, &address), Answer::Open, "{behind:?} is behind");
        let wanted = told(&world, behind, |output| {
            matches!(output, DirectoryOutput::ViewWanted(_)).then_some(())
        });
        assert_eq!(wanted.len(), 1, "it asks for the view, once");
        world.show_to(behind.silo);
        world.run_for(Duration::from_millis(10));
        assert!(world.located(asker, &address).place().is_some());
    }
    world.assert_sound();
}

// ---- registrations

/// F56.
#[test]
fn of_two_that_register_at_once_one_wins_and_the_other_hears_who() {
    let (mut world, [owner, one, two]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(one, &address);
    world.register(two, &address);
    world.run_for(SECOND);
    let holders = world.holders(address.hash());
    assert_eq!(holders.len(), 1);
    let loser = if holders[0].endpoint == one { two } else { one };
    assert_eq!(told(&world, loser, is_lost), holders);
    world.check_rest();
    world.assert_sound();
}

/// F60. The entry is lost; ranges move; the activation is known again before anybody asks.
#[test]
fn a_registration_whose_entry_was_lost_is_asserted_with_the_new_owner() {
    let (mut world, [owner, host, other]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    world.drop_entry(&address);
    world.set(owner.silo, SiloStatus::Draining);
    world.run_for(3 * SECOND);
    world.register(other, &address);
    world.run_for(SECOND);
    let holders = world.holders(address.hash());
    assert_eq!(holders.iter().map(|place| place.endpoint).collect::<Vec<_>>(), vec![host]);
    assert_eq!(told(&world, other, is_lost), holders, "a second one is refused");
}

/// F61, the directory's part.
#[test]
fn a_shard_may_register_again_before_its_unregistration_is_confirmed() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    let before = world.holders(address.hash())[0];
    world.unregister(host, &address);
    world.register(host, &address);
    world.run_for(SECOND);
    let after = world.holders(address.hash())[0];
    assert!(after.number > before.number, "a later activation has a higher number");
    assert_eq!(world.find(asker, &address), Some(after));
    world.check_rest();
    world.assert_sound();
}

/// F63.
#[test]
fn an_entry_of_a_dead_silo_is_replaced_at_once() {
    let (mut world, [owner, host, other]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    world.kill_and_bury(host.silo);
    world.run_for(Duration::from_millis(10));
    world.register(other, &address);
    world.run_for(Duration::from_millis(10));
    assert_eq!(world.holders(address.hash())[0].endpoint, other);
}

/// An entry that points to a living silo which does not hold it is repaired by a refusal.
#[test]
fn a_refusal_makes_the_owner_ask_the_home_and_forget_it() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    let place = world.find(asker, &address).unwrap();
    world.block(host.silo, owner.silo);
    world.unregister(host, &address);
    world.run_for(SECOND);
    assert_eq!(world.find(asker, &address), Some(place), "the owner has not heard");
    world.told.clear();
    world.at(asker, |directory, now| {
        directory.refused(now, &address, place);
    });
    assert_eq!(world.lookup(asker, &address), Lookup::Pending);
    world.run_for(SECOND);
    assert_eq!(world.located(asker, &address), Answer::Open, "it waits for the home's word");
    world.blocked.clear();
    world.run_for(SECOND);
    assert_eq!(world.located(asker, &address), Answer::Absent);
    world.check_rest();
    world.assert_sound();
}

#[test]
fn a_refusal_that_was_a_mistake_removes_nothing() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.register(host, &address);
    world.run_for(SECOND);
    let place = world.find(asker, &address).unwrap();
    world.at(asker, |directory, now| {
        directory.refused(now, &address, place);
    });
    world.run_for(SECOND);
    assert_eq!(world.find(asker, &address), Some(place));
}

// ---- hubs

/// G77.
#[test]
fn a_hub_that_nobody_claimed_is_absent_after_one_round_trip() {
    let (mut world, [owner, asker, _]) = three(SOUND);
    let address = world.address_at(owner);
    world.told.clear();
    world.lookup(asker, &address);
    world.run_for(Duration::from_millis(2));
    assert_eq!(world.located(asker, &address), Answer::Absent);
}

/// One directory whose hub's range belongs to a silo that we play.
struct Alone {
    directory: Directory,
    owner: Endpoint,
    hub: Address,
    now: Moment,
}

impl Alone {
    fn new(planted: Planted) -> Self {
        let (world, [me, owner, _]) = three(SOUND);
        let mut config = DirectoryConfig::new(me, 1);
        config.planted = planted;
        let mut directory = Directory::new(config);
        let hub = world.address_at(owner);
        directory.handle_view(world.now, &world.view);
        directory.claim(world.now, &hub, TakeOver::No);
        Self { directory, owner, hub, now: world.now }
    }

    /// When claims were sent, since the last call.
    fn claims(&mut self) -> usize {
        let mut count = 0;
        while let Some(output) = self.directory.poll_output() {
            count += usize::from(matches!(
                output,
                DirectoryOutput::Send(
                    to,
                    DirectoryMessage { word: Word::Ask(Ask::Claim { .. }), .. }
                ) if to == self.owner
            ));
        }
        count
    }

    fn answer(&mut self, tell: Tell) {
        let view = ViewNumber(self.directory.core.view.number().0);
        let message = DirectoryMessage { view, word: Word::Tell(tell) };
        self.directory.handle_message(self.now, self.owner, message);
    }
}

/// H1. How often a claim was sent until it was granted, after `refusals` by a moving directory;
/// each time must be exactly one period after the last.
fn attach(refusals: usize, planted: Planted) -> Option<usize> {
    let mut alone = Alone::new(planted);
    let (hash, mut sent) = (alone.hub.hash(), alone.claims());
    for _ in 0..refusals {
        alone.answer(Tell::Moving { hash });
        alone.now += DIRECTORY_RESEND_AFTER.saturating_sub(Duration::from_nanos(1));
        alone.directory.tick(alone.now);
        assert_eq!(alone.claims(), 0, "not before its time");
        alone.now += Duration::from_nanos(1);
        alone.directory.tick(alone.now);
        let again = alone.claims();
        if again == 0 {
            return None;
        }
        sent += again;
    }
    let number = ClaimNumber { view: alone.directory.core.view.number(), counter: 1 };
    alone.answer(Tell::Claimed { hash, attempt: 1, number });
    let is_held = core::iter::from_fn(|| alone.directory.poll_output())
        .any(|output| is_claimed(&output) == Some(number));
    is_held.then_some(sent)
}

#[test]
fn a_claim_refused_by_a_moving_directory_is_made_again_on_schedule_until_it_is_held() {
    for refusals in 0..=7 {
        assert_eq!(attach(refusals, SOUND), Some(refusals + 1));
    }
    assert_eq!(attach(1, Planted::with(Defect::SingleAttach)), None);
    assert_eq!(attach(7, Planted::with(Defect::ClaimGivesUp)), None);
}

#[test]
fn a_claim_refused_for_good_fails_at_the_first_try() {
    let mut alone = Alone::new(SOUND);
    assert_eq!(alone.claims(), 1);
    let number = ClaimNumber { view: ViewNumber(1), counter: 1 };
    let holder = Place::of_claim(alone.owner, number);
    let hash = alone.hub.hash();
    alone.answer(Tell::ClaimRefused { hash, attempt: 1, holder });
    let outputs: Vec<_> = core::iter::from_fn(|| alone.directory.poll_output()).collect();
    assert_eq!(outputs.iter().filter_map(is_refused).collect::<Vec<_>>(), vec![holder]);
    assert_eq!(alone.directory.usage().hubs, 0);
}

/// H3. How many claims were sent before the silo was Active, and in all.
fn early_claims(planted: Planted) -> (usize, usize) {
    let (mut world, [owner, ..]) = three(planted);
    let silo = world.join();
    world.run_for(SECOND);
    let address = world.address_at(owner);
    let is_claim = |ask: &Ask| matches!(ask, Ask::Claim { .. });
    world.claim(first(silo), &address, TakeOver::No);
    world.run_for(Duration::from_millis(400));
    let early = world.asks(is_claim).len();
    let (now, at) = (world.now, first(silo));
    // Until it takes up the view in which it is Active, and its own range is no stranger's.
    world.set(silo, SiloStatus::Active);
    world.run_for(Duration::from_millis(400));
    assert!(world.now > now);
    let late = world.asks(is_claim).len();
    let is_own = world.view.ring().owner(Key::of(address.hash()).position()) == Some(at);
    assert!(!is_own, "the address was chosen so that its claim is seen");
    assert_eq!(told(&world, at, is_claimed).len(), 1);
    (early, early + late)
}

#[test]
fn a_claim_is_held_back_until_the_silo_is_active_and_made_once() {
    assert_eq!(early_claims(SOUND), (0, 1));
    let (early, _) = early_claims(Planted::with(Defect::ClaimBeforeActive));
    assert!(early > 0);
}

/// A hub that is far from the points of a silo, so that others own it.
fn far_from(host: Endpoint) -> Address {
    let ring = Ring::new([(host.silo, 1)]);
    let distance = |address: &Address| {
        let position = Key::of(address.hash()).position();
        ring.range(position).unwrap().0.up_to.wrapping_sub(position)
    };
    let all = (0..1000).map(|index| Address::of("portal", &format!("{index}")).unwrap());
    all.max_by_key(distance).unwrap()
}

/// H4, G79. The claim's entry is lost just before its range gets a new owner, twenty times. How
/// often the hub was found again without any traffic.
fn found_again(planted: Planted) -> usize {
    let (mut world, [host, ..]) = three(planted);
    let address = far_from(host);
    let key = Key::of(address.hash());
    world.claim(host, &address, TakeOver::No);
    world.run_for(SECOND);
    let mut found = 0;
    for _ in 0..20 {
        let silo = world.join();
        world.run_for(SECOND);
        world.set(silo, SiloStatus::Active);
        world.run_for(2 * SECOND);
        let owner = world.view.ring().owner(key.position()).unwrap().silo;
        world.drop_entry(&address);
        world.set(owner, SiloStatus::Draining);
        world.run_for(CLAIM_JITTER_MAX);
        world.kill_and_bury(owner);
        let asker = world.silos(SiloStatus::Active).into_iter().find(|s| *s != host.silo).unwrap();
        world.violations.clear();
        let place = world.find(first(asker), &address);
        found += usize::from(place.is_some_and(|place| place.endpoint == host));
        assert_eq!(world.holders(address.hash()).len(), 1, "and nothing was created anywhere");
    }
    found
}

#[test]
fn a_lost_claim_is_back_within_one_view_of_a_new_owner() {
    assert_eq!(found_again(SOUND), 20);
    assert!(found_again(Planted::with(Defect::ClaimOnceOnly)) < 20);
}

#[test]
fn a_lost_claim_is_back_within_a_lease_though_no_range_moves() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(host, &address, TakeOver::No);
    world.run_for(SECOND);
    let number = told(&world, host, is_claimed)[0];
    world.drop_entry(&address);
    world.run_for(CLAIM_LEASE);
    assert_eq!(world.find(asker, &address), Some(Place::of_claim(host, number)));
}

/// H5. Claims sent when the view changes while one is in flight, and until the next is due.
fn claims_at_a_change(planted: Planted) -> usize {
    let (mut world, [owner, host, _]) = three(planted);
    let address = world.address_at(owner);
    world.block(owner.silo, host.silo);
    world.claim(host, &address, TakeOver::No);
    let is_claim = |ask: &Ask| matches!(ask, Ask::Claim { .. });
    assert_eq!(world.asks(is_claim).len(), 1);
    world.run_for(DIRECTORY_RESEND_AFTER / 2);
    world.publish();
    world.run_for(DIRECTORY_RESEND_AFTER / 4);
    let again = world.asks(is_claim).len();
    world.blocked.clear();
    world.run_for(SECOND);
    assert_eq!(told(&world, host, is_claimed).len(), 1);
    again
}

#[test]
fn a_view_change_during_a_claim_in_flight_brings_one_more_claim_not_two() {
    assert_eq!(claims_at_a_change(SOUND), 1);
    assert_eq!(claims_at_a_change(Planted::with(Defect::NoSwitch)), 0);
}

/// H6. Whether the successor is still found after its predecessor's late words.
fn successor_stays(planted: Planted) -> bool {
    let (mut world, [owner, old, new]) = three(planted);
    let address = world.address_at(owner);
    let hash = address.hash();
    world.claim(old, &address, TakeOver::No);
    world.run_for(SECOND);
    let number = told(&world, old, is_claimed)[0];
    world.claim(new, &address, TakeOver::Yes);
    world.run_for(SECOND);
    let successor = Place::of_claim(new, told(&world, new, is_claimed)[0]);
    let view = world.view.number();
    let late = [
        Ask::Claim { hash, attempt: 1, held: Some(number), take_over: TakeOver::No },
        Ask::Release { hash, attempt: 1, number: Some(number) },
        Ask::Unregister { hash, attempt: 1 },
    ];
    for ask in late {
        let message = DirectoryMessage { view, word: Word::Ask(ask) };
        world.at(owner, |directory, now| {
            directory.handle_message(now, old, message);
        });
        world.run_for(SECOND);
    }
    world.find(owner, &address) == Some(successor)
}

#[test]
fn a_predecessors_late_words_do_not_unseat_its_successor() {
    assert!(successor_stays(SOUND));
    assert!(!successor_stays(Planted::with(Defect::AddressOnly)));
}

/// H7. Where a closed hub is found after a late copy of its own claim came in.
fn after_closing(planted: Planted) -> Option<Place> {
    let (mut world, [owner, host, asker]) = three(planted);
    let address = world.address_at(owner);
    let hash = address.hash();
    world.claim(host, &address, TakeOver::No);
    world.run_for(SECOND);
    let held = Some(told(&world, host, is_claimed)[0]);
    world.release(host, &address);
    world.run_for(SECOND);
    let late = Ask::Claim { hash, attempt: 1, held, take_over: TakeOver::No };
    let message = DirectoryMessage { view: world.view.number(), word: Word::Ask(late) };
    world.at(owner, |directory, now| {
        directory.handle_message(now, host, message);
    });
    world.run_for(SECOND);
    world.find(asker, &address)
}

#[test]
fn a_closed_hub_is_absent_at_once_and_stays_so_whatever_comes_late() {
    assert_eq!(after_closing(SOUND), None);
    assert!(after_closing(Planted::with(Defect::NoTombstone)).is_some());
}

#[test]
fn a_closed_hub_is_remembered_through_the_death_of_its_owner_and_forgotten_in_time() {
    let (mut world, [owner, host, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(host, &address, TakeOver::No);
    world.run_for(SECOND);
    world.release(host, &address);
    world.run_for(SECOND);
    world.kill_and_bury(owner.silo);
    world.run_for(SECOND);
    let tombstones = |world: &World| {
        world.endpoints().iter().map(|at| world.usage(*at).tombstones).sum::<usize>()
    };
    assert_eq!(tombstones(&world), 1);
    world.run_for(TOMBSTONE_TIME);
    assert_eq!(tombstones(&world), 0);
    assert_eq!(world.usage(host).closed, 0);
    assert_eq!(world.find(asker, &address), None, "absent in a stable range");
    let silent = world.join();
    world.set(silent, SiloStatus::Active);
    world.run_for(SECOND);
    world.kill(silent);
    let owner = world.view.ring().owner(Key::of(address.hash()).position()).unwrap();
    let asker = if owner == asker { host } else { asker };
    world.kill_and_bury(owner.silo);
    if world.lives(asker.silo) {
        world.told.clear();
        world.lookup(asker, &address);
        world.run_for(SECOND);
        assert_eq!(
            world.located(asker, &address),
            Answer::Open,
            "unknown while the range is moving"
        );
    }
}

#[test]
fn a_hub_can_be_claimed_again_after_it_was_closed() {
    let (mut world, [owner, old, new]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(old, &address, TakeOver::No);
    world.run_for(SECOND);
    world.release(old, &address);
    world.claim(new, &address, TakeOver::No);
    world.run_for(SECOND);
    let numbers = [told(&world, old, is_claimed)[0], told(&world, new, is_claimed)[0]];
    assert!(numbers[0] < numbers[1]);
    assert_eq!(world.find(owner, &address), Some(Place::of_claim(new, numbers[1])));
    world.check_rest();
    world.assert_sound();
}

/// H12, G78. Who holds the hub after a second process claimed it plainly.
fn holder_of_two(planted: Planted) -> (Endpoint, Endpoint) {
    let (mut world, [owner, one, two]) = three(planted);
    let address = world.address_at(owner);
    world.claim(one, &address, TakeOver::No);
    world.run_for(SECOND);
    world.claim(two, &address, TakeOver::No);
    world.run_for(SECOND);
    (world.find(owner, &address).unwrap().endpoint, one)
}

#[test]
fn of_two_that_claim_one_hub_the_first_holds_it_and_a_take_over_replaces_it() {
    let (holder, one) = holder_of_two(SOUND);
    assert_eq!(holder, one);
    let (holder, one) = holder_of_two(Planted::with(Defect::LastWriterWins));
    assert_ne!(holder, one);

    let (mut world, [owner, one, two]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(one, &address, TakeOver::No);
    world.run_for(SECOND);
    let held = world.holders(address.hash());
    world.claim(two, &address, TakeOver::No);
    world.run_for(SECOND);
    assert_eq!(told(&world, two, is_refused), held, "it hears who holds it");
    world.claim(two, &address, TakeOver::Yes);
    world.run_for(SECOND);
    let taken = world.holders(address.hash());
    assert_eq!(told(&world, one, is_lost), taken);
    assert_eq!(world.find(owner, &address), Some(taken[0]));
    assert!(taken[0].number > held[0].number, "I12: the newest number is held once");
    world.check_rest();
    world.assert_sound();
}

#[test]
fn a_claim_over_a_dead_holder_succeeds_without_a_take_over() {
    let (mut world, [owner, old, new]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(old, &address, TakeOver::No);
    world.run_for(SECOND);
    world.kill_and_bury(old.silo);
    world.run_for(Duration::from_millis(10));
    world.claim(new, &address, TakeOver::No);
    world.run_for(Duration::from_millis(10));
    assert_eq!(told(&world, new, is_claimed).len(), 1);
}

/// A take-over while the old holder cannot be told.
#[test]
fn an_evicted_holder_is_told_until_it_knows() {
    let (mut world, [owner, old, new]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(old, &address, TakeOver::No);
    world.run_for(SECOND);
    world.block(owner.silo, old.silo);
    world.claim(new, &address, TakeOver::Yes);
    world.run_for(5 * SECOND);
    assert_eq!(told(&world, old, is_lost), vec![]);
    world.blocked.clear();
    world.run_for(SECOND);
    assert_eq!(told(&world, old, is_lost), world.holders(address.hash()));
    world.check_rest();
    world.assert_sound();
}

/// A copy of a claim that is still on its way when the claim is refused must not be granted later.
#[test]
fn a_refused_claims_late_copy_leaves_no_ghost() {
    let (mut world, [owner, holder, late]) = three(SOUND);
    let address = world.address_at(owner);
    world.claim(holder, &address, TakeOver::No);
    world.run_for(SECOND);
    world.delays.message_us = (400_000, 400_000);
    world.claim(late, &address, TakeOver::No);
    let is_answered = |world: &World| !told(world, late, is_refused).is_empty();
    assert!(world.run_until(5 * SECOND, is_answered));
    world.release(holder, &address);
    world.run_for(5 * SECOND);
    assert_eq!(world.find(owner, &address), None);
    world.check_rest();
    world.assert_sound();
}

/// G82.
#[test]
fn hubs_assert_their_claims_spread_over_time_when_ranges_move() {
    let (mut world, [host, ..]) = three(SOUND);
    for index in 0..200 {
        let address = Address::of("portal", &format!("hub-{index}")).unwrap();
        world.claim(host, &address, TakeOver::No);
    }
    world.run_for(SECOND);
    world.sent.clear();
    let silo = world.join();
    world.set(silo, SiloStatus::Active);
    let changed_at = world.now;
    world.run_for(SECOND);
    let claims = world.asks(|ask| matches!(ask, Ask::Claim { held: Some(_), .. }));
    assert!(claims.len() > 20, "ranges moved: {}", claims.len());
    let sent = |claim: &super::world::Parcel| claim.at.since(changed_at).as_millis();
    let early = claims.iter().filter(|claim| sent(claim) < 12).count();
    assert!(early * 2 < claims.len(), "{early} of {} at once", claims.len());
    assert!(claims.iter().all(|claim| sent(claim) < 100), "but soon");
}

/// After everything is given up and forgotten, nothing is left.
#[test]
fn every_table_is_empty_again_after_everything_is_given_up() {
    let (mut world, [one, two, _]) = three(SOUND);
    let grains = populate(&mut world, 60);
    let hubs: Vec<_> =
        (0..20).map(|index| Address::of("portal", &format!("{index}")).unwrap()).collect();
    for hub in &hubs {
        world.claim(one, hub, TakeOver::No);
        world.lookup(two, hub);
    }
    world.run_for(SECOND);
    for (address, host) in &grains {
        world.unregister(*host, address);
    }
    for hub in &hubs {
        world.release(one, hub);
    }
    world.run_for(TOMBSTONE_TIME + SECOND);
    for endpoint in world.endpoints() {
        assert_eq!(world.usage(endpoint), crate::directory::Usage::default(), "{endpoint:?}");
    }
    world.assert_sound();
}

// ---- peers

#[test]
fn a_message_from_a_silo_that_is_gone_changes_nothing() {
    let (mut world, [owner, dead, asker]) = three(SOUND);
    let address = world.address_at(owner);
    world.kill_and_bury(dead.silo);
    world.run_for(SECOND);
    let hash = address.hash();
    let register = Word::Ask(Ask::Register { hash, attempt: 1 });
    let message = DirectoryMessage { view: world.view.number(), word: register };
    world.at(owner, |directory, now| {
        directory.handle_message(now, dead, message);
    });
    assert_eq!(world.find(asker, &address), None);
}

#[test]
fn a_view_that_is_not_newer_changes_nothing() {
    let (mut world, [owner, ..]) = three(SOUND);
    let old = Arc::clone(&world.view);
    world.publish();
    world.run_for(SECOND);
    world.at(owner, |directory, now| directory.handle_view(now, &old));
    world.assert_whole();
    world.assert_sound();
}

#[test]
fn a_relayed_message_goes_one_hop_and_no_further() {
    let (mut world, [one, two, three]) = three(SOUND);
    let relay = Word::Relay { origin: three, to: two, message: vec![1, 2, 3] };
    let message = DirectoryMessage { view: world.view.number(), word: relay };
    world.sent.clear();
    world.at(one, |directory, now| {
        directory.handle_message(now, two, message.clone());
    });
    assert!(world.sent.is_empty(), "its sender is not its origin");
    world.at(one, |directory, now| {
        directory.handle_message(now, three, message);
    });
    assert_eq!(world.sent.len(), 1);
    world.run_for(SECOND);
    world.assert_sound();
}

#[test]
fn a_look_up_that_nobody_waits_for_ends_without_a_word() {
    let (mut world, [owner, asker, _]) = three(SOUND);
    let address = world.address_at(owner);
    world.told.clear();
    world.lookup(asker, &address);
    world.at(asker, |directory, _| directory.abandon(address.hash()));
    world.run_for(SECOND);
    assert_eq!(world.located(asker, &address), Answer::Open);
    assert_eq!(world.usage(asker).lookups, 0);
}

#[test]
fn the_first_silo_of_a_cluster_serves_the_ring_at_once() {
    let mut world = World::new(1, 2, PROMPT, SOUND);
    let silo = world.join();
    world.set(silo, SiloStatus::Active);
    world.run_for(Duration::from_millis(10));
    world.assert_whole();
}
