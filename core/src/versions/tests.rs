//! Conversions of values and bodies, and what goes to whom.

use super::*;

#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Debug, PartialEq)]
struct LineV1 {
    number: u64,
    from: u32,
    to: u32,
}

/// The same bytes with another meaning.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Debug, PartialEq)]
struct Line {
    number: u64,
    to: u32,
    from: u32,
}

impl Layout for LineV1 {
    const LAYOUT: u64 = 1;
}

impl Layout for Line {
    const LAYOUT: u64 = 2;
}

impl Message for LineV1 {
    const TYPE: &'static str = "test.line";
    const VERSION: u16 = 1;
}

impl Message for Line {
    const TYPE: &'static str = "test.line";
    const VERSION: u16 = 2;
    const OLDER: &'static [Older] = &[Older::both::<LineV1, Self>(LineV1::SCHEMA)];
}

impl FromVersion<LineV1> for Line {
    fn from_version(old: LineV1) -> Result<Self, Unconvertible> {
        assert!(old.number != 13, "the program's own code panics");
        Ok(Self { number: old.number, to: old.to, from: old.from })
    }
}

impl FromVersion<Line> for LineV1 {
    fn from_version(new: Line) -> Result<Self, Unconvertible> {
        Ok(Self { number: new.number, from: new.from, to: new.to })
    }
}

/// As `Line` after one more change, which reads the first version and is sent to nobody as it.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Debug, PartialEq)]
struct Latest {
    number: u64,
}

impl Layout for Latest {
    const LAYOUT: u64 = 3;
}

impl Message for Latest {
    const TYPE: &'static str = "test.line";
    const VERSION: u16 = 3;
    const OLDER: &'static [Older] = &[
        Older::both::<Line, Self>(Line::SCHEMA),
        Older::read_only::<LineV1, Self>(LineV1::SCHEMA),
    ];
}

impl FromVersion<LineV1> for Latest {
    fn from_version(old: LineV1) -> Result<Self, Unconvertible> {
        Ok(Self { number: old.number })
    }
}

impl FromVersion<Line> for Latest {
    fn from_version(old: Line) -> Result<Self, Unconvertible> {
        Ok(Self { number: old.number })
    }
}

impl FromVersion<Latest> for Line {
    fn from_version(new: Latest) -> Result<Self, Unconvertible> {
        Ok(Self { number: new.number, to: 0, from: 0 })
    }
}

fn old(number: u64) -> Body {
    Body::encode(&LineV1 { number, from: 1, to: 2 })
}

fn versions<M: Message>() -> Versions {
    let mut versions = Versions::default();
    versions.add(BodyType::of::<M>());
    versions
}

fn schemas(versions: &Versions) -> Vec<Schema> {
    versions.told().into_iter().map(|told| told.schema).collect()
}

#[test]
fn what_messages_are_made_of_becomes_what_it_was() {
    type Old = (Vec<u32>, Option<u8>, Result<String, u16>, [i8; 2]);
    type New = (Vec<u64>, Option<u32>, Result<String, u64>, [i32; 2]);
    let old: Old = (vec![1, 2], Some(3), Err(4), [5, -6]);
    let new: New = (vec![1, 2], Some(3), Err(4), [5, -6]);
    assert_eq!(New::from_version(old.clone()), Ok(new.clone()));
    assert_eq!(Old::from_version(new), Ok(old));
    let too_large = <Vec<u32>>::from_version(vec![1u64 << 40]);
    assert!(matches!(too_large, Err(Unconvertible::Refused(_))), "{too_large:?}");
}

/// Without its conversion the old body is a valid archive of the new type, with other content: that
/// is why a schema alone decides.
#[test]
fn an_older_body_is_taken_up_and_no_other_is_read() {
    assert_eq!(old(7).decode::<Line>(), Ok(Line { number: 7, to: 1, from: 2 }), "a misread");
    assert_eq!(read::<Line>(old(7), LineV1::SCHEMA), Ok(Line { number: 7, to: 2, from: 1 }));
    assert_eq!(read::<LineV1>(old(7), Line::SCHEMA), Err(Unconvertible::NoPath));
    let garbage = read::<Line>(Body::copy_of(&[1]), LineV1::SCHEMA);
    assert_eq!(garbage, Err(Unconvertible::Undecodable(Undecodable)));
    let panicked = read::<Line>(old(13), LineV1::SCHEMA);
    assert_eq!(panicked, Err(Unconvertible::Refused("it panicked".to_owned())));
}

#[test]
fn versions_that_look_alike_in_a_header_are_two_versions() {
    let alike = Schema { version: 9, ..Line::SCHEMA };
    assert_eq!(alike.fingerprint, Line::SCHEMA.fingerprint);
    let body = Body::encode(&Line { number: 7, to: 2, from: 1 });
    assert_eq!(read::<Line>(body, alike), Err(Unconvertible::NoPath));
}

#[test]
fn an_older_peer_gets_what_it_has_and_an_equal_one_costs_nothing() {
    let (ours, theirs) = (versions::<Line>(), versions::<LineV1>());
    assert!(ours.towards(&schemas(&ours)).is_none(), "an equal peer is no other");
    assert!(theirs.towards(&schemas(&ours)).is_none(), "the newer one takes up");
    assert!(ours.towards(&[]).is_none(), "who tells of nothing judges what it gets");
    let towards = ours.towards(&schemas(&theirs)).unwrap();
    let body = Body::encode(&Line { number: 7, to: 2, from: 1 });
    let handed_down = towards.hand_down(Line::SCHEMA, &body).unwrap();
    assert_eq!(handed_down, Some(Converted { schema: LineV1::SCHEMA, body: old(7) }));
    assert_eq!(towards.hand_down(LineV1::SCHEMA, &old(7)), Ok(None), "it has that");
}

#[test]
fn the_newest_version_that_both_have_is_sent_and_never_one_that_is_only_read() {
    let latest = versions::<Latest>();
    let body = Body::encode(&Latest { number: 7 });
    let to_second = latest.towards(&schemas(&versions::<Line>())).unwrap();
    let handed_down = to_second.hand_down(Latest::SCHEMA, &body).unwrap().unwrap();
    assert_eq!(handed_down.schema, Line::SCHEMA, "not the first, which the peer has too");
    assert!(latest.towards(&[LineV1::SCHEMA]).is_none(), "that one is only read");
    // What came in an older version goes on as one that the peer has.
    let dropped_first = [Latest::SCHEMA, Line::SCHEMA];
    let onward = latest.towards(&dropped_first).unwrap();
    let taken_up = onward.hand_down(LineV1::SCHEMA, &old(7)).unwrap().unwrap();
    assert_eq!(taken_up, Converted { schema: Latest::SCHEMA, body });
}

#[test]
fn a_body_inside_another_is_handed_down_with_it() {
    type Carrier = (u64, Vec<u8>);
    const CARRIER: Schema = Schema { type_id: 5, version: 1, fingerprint: 1 };
    let carry: Carry = |body, hand_down| {
        let (bits, inner) = body.decode::<Carrier>().ok()?;
        let Converted { schema, body } = hand_down(Schema::from_bits(bits), &inner)?;
        Some(Body::encode(&(schema.to_bits(), body.as_slice().to_vec())))
    };
    let mut ours = versions::<Line>();
    ours.add_carrier(CARRIER, carry);
    let towards = ours.towards(&schemas(&versions::<LineV1>())).unwrap();
    let carrying =
        |schema: Schema, inner: &Body| Body::encode(&(schema.to_bits(), inner.as_slice().to_vec()));
    let new = Body::encode(&Line { number: 7, to: 2, from: 1 });
    let sent = towards.hand_down(CARRIER, &carrying(Line::SCHEMA, &new)).unwrap();
    let expected = Converted { schema: CARRIER, body: carrying(LineV1::SCHEMA, &old(7)) };
    assert_eq!(sent, Some(expected));
    let foreign = carrying(Schema::NONE, &new);
    assert_eq!(towards.hand_down(CARRIER, &foreign), Ok(None), "what nobody knows goes as it is");
}

#[test]
fn only_an_earlier_version_of_one_name_is_older() {
    assert!(is_older::<LineV1, Line>() && is_older::<LineV1, Latest>());
    assert!(!is_older::<Line, LineV1>() && !is_older::<Line, Line>());
    assert!(!is_older::<(), Line>(), "of another name");
    assert!(are_distinct(Latest::OLDER));
    let twice = [Line::OLDER[0], Line::OLDER[0]];
    assert!(!are_distinct(&twice));
}

#[test]
fn every_version_is_told_once_and_two_layouts_of_one_are_both_told() {
    let mut all = versions::<Latest>();
    all.add(BodyType::of::<Line>());
    assert_eq!(schemas(&all), [LineV1::SCHEMA, Line::SCHEMA, Latest::SCHEMA]);
    all.add(BodyType { layout: 77, ..BodyType::of::<Line>() });
    assert_eq!(all.told().len(), 4);
}
