//! `docs/wire.md` says what the code does: its tables are read here and compared.

use siloring_core::limits::{
    ADDRESS_BYTES_MAX, FAILURE_DETAIL_BYTES_MAX, FRAME_ALIGN, FRAME_BYTES_MAX,
    HANDSHAKE_FRAME_BYTES_MAX, HEADER_BYTES, HOSTED_TYPES_MAX, LINK_DICTIONARY_MAX,
};
use siloring_core::outcome::{FailedKind, IndeterminateKind, RejectedKind};
use siloring_core::schema::Schema;
use siloring_core::wire::{FLAG_EXTENSIONS, FLAG_ONE_WAY, FrameKind, Header, MAGIC, Tag, VERSION};
use siloring_core::{Address, AddressHash, CorrelationId, MethodId, ViewNumber};
use siloring_transport::{Class, RefusalKind};

use crate::fixture::{Pair, carry, data_links};

const DOCUMENT: &str = include_str!("../../../docs/wire.md");

/// The rows of the table whose head has these first columns, cell by cell.
fn table(head: &[&str]) -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| -> Option<Vec<&'static str>> {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(inner.split('|').map(str::trim).collect())
    };
    let rows: Vec<Vec<&str>> = DOCUMENT
        .lines()
        .map(|line| cells(line).unwrap_or_default())
        .skip_while(|row| !row.starts_with(head))
        .take_while(|row| !row.is_empty())
        .skip(2)
        .collect();
    assert!(!rows.is_empty(), "no table {head:?}");
    rows
}

fn number(text: &str) -> usize {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn the_header_is_laid_as_its_table_says() {
    let header = Header {
        kind: FrameKind::Failure,
        flags: FLAG_ONE_WAY,
        forwards: 0xa1,
        attempt: 0xa2,
        method: MethodId(0xb4b3_b2b1),
        correlation: CorrelationId(0xc8c7_c6c5_c4c3_c2c1),
        schema: Schema { type_id: 0xd4d3_d2d1, version: 0xd6d5, fingerprint: 0xd8d7 },
        source: AddressHash(u128::from_le_bytes(*b"source-of-frame.")),
        target: AddressHash(u128::from_le_bytes(*b"target-of-frame.")),
    };
    let bytes = header.encode(5, 32);
    let mut end = 0;
    for row in table(&["offset", "size", "field", "meaning"]) {
        let (offset, size) = (number(row[0]), number(row[1]));
        assert_eq!(offset, end, "{} follows without a gap", row[2]);
        end = offset + size;
        let expected = match row[2] {
            "length" => 112u32.to_le_bytes().to_vec(),
            "magic" => MAGIC.to_le_bytes().to_vec(),
            "version" => vec![VERSION],
            "kind" => vec![FrameKind::Failure as u8],
            "flags" => (FLAG_ONE_WAY | FLAG_EXTENSIONS | 0x000b).to_le_bytes().to_vec(),
            "forwards" => vec![0xa1],
            "attempt" => vec![0xa2],
            "method" => header.method.0.to_le_bytes().to_vec(),
            "correlation" => header.correlation.0.to_le_bytes().to_vec(),
            "schema" => vec![0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8],
            "source" => b"source-of-frame.".to_vec(),
            "target" => b"target-of-frame.".to_vec(),
            other => panic!("no field {other:?} in the code"),
        };
        assert_eq!(bytes[offset..end], expected, "{}", row[2]);
    }
    assert_eq!(end, HEADER_BYTES);
    assert!(DOCUMENT.contains(&format!("`{MAGIC:#06x}`")));
}

#[test]
fn flags_kinds_and_tags_have_the_codes_of_their_tables() {
    let masks: Vec<usize> = table(&["mask"]).iter().map(|row| number(row[0])).collect();
    assert_eq!(masks, [0x000f, usize::from(FLAG_EXTENSIONS), usize::from(FLAG_ONE_WAY)]);

    let kinds = table(&["code", "kind"]);
    let known: Vec<(usize, String)> = (0..=u8::MAX)
        .filter_map(|code| Some((usize::from(code), format!("{:?}", FrameKind::from_code(code)?))))
        .collect();
    let told: Vec<(usize, String)> =
        kinds.iter().map(|row| (number(row[0]), row[1].to_owned())).collect();
    assert_eq!(told, known);

    let tags = [
        Tag::DeadlineMs,
        Tag::Trace,
        Tag::Identity,
        Tag::Header,
        Tag::Ancestor,
        Tag::Place,
        Tag::View,
        Tag::Event,
        Tag::IdempotencyKey,
    ];
    let known: Vec<(usize, String)> =
        tags.iter().map(|&tag| (tag as usize, format!("{tag:?}"))).collect();
    let told: Vec<(usize, String)> =
        table(&["tag"]).iter().map(|row| (number(row[0]), row[1].to_owned())).collect();
    assert_eq!(told, known);
}

#[test]
fn refusals_and_failures_have_the_codes_of_their_tables() {
    let told: Vec<(usize, &str)> =
        table(&["code", "refusal"]).iter().map(|row| (number(row[0]), row[1])).collect();
    let known: Vec<(usize, &str)> =
        RefusalKind::ALL.iter().map(|kind| (usize::from(kind.code()), kind.name())).collect();
    assert_eq!(told, known);

    let told: Vec<(usize, &str, &str)> =
        table(&["code", "shape"]).iter().map(|row| (number(row[0]), row[1], row[2])).collect();
    let rejected = RejectedKind::ALL.iter().map(|k| (k.code(), "Rejected", k.name()));
    let failed = FailedKind::ALL.iter().map(|k| (k.code(), "Failed", k.name()));
    let indeterminate =
        IndeterminateKind::ALL.iter().map(|k| (k.code(), "Indeterminate", k.name()));
    let known: Vec<(usize, &str, &str)> = rejected
        .chain(failed)
        .chain(indeterminate)
        .map(|(code, shape, name)| (usize::from(code), shape, name))
        .collect();
    assert_eq!(told, known);
}

#[test]
fn a_dictionary_and_a_view_are_laid_as_told() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let ada = Address::parse("portal/ada").unwrap();
    dialer.push_view(ViewNumber(0x0102));
    let mut header = Header::new(FrameKind::Request);
    header.target = ada.hash();
    dialer.push(&header, None, Some(&ada), &[], &[], Class::Request).unwrap();
    let (view, rest) = dialer.unsent().split_at(HEADER_BYTES);
    assert_eq!((view[7], &view[16..24]), (6, &0x0102u64.to_le_bytes()[..]));
    assert_eq!((rest[7], &rest[12..16]), (5, &[0; 4][..]), "mode 0");
    let entry = &rest[HEADER_BYTES..];
    let rows = table(&["offset", "size", "field"]);
    let dictionary: Vec<Vec<&str>> = DOCUMENT
        .split("## Dictionary")
        .nth(1)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| ") && line.split('|').count() == 5)
        .map(|line| line.split('|').map(str::trim).collect())
        .take(4)
        .collect();
    assert_eq!(rows[0].len(), 4, "the first such table is the header's");
    let at = |row: usize| number(dictionary[row][1]);
    assert_eq!(&entry[at(1)..at(2)], ada.hash().0.to_le_bytes());
    assert_eq!(&entry[at(2)..at(3)], 10u16.to_le_bytes());
    assert_eq!(&entry[at(3)..at(3) + 10], b"portal/ada");
    carry(&mut dialer, &mut acceptor);
    assert!(acceptor.next_frame().unwrap().is_some());
}

#[test]
fn limits_are_those_of_the_table() {
    let told: Vec<(&str, usize)> =
        table(&["limit"]).iter().map(|row| (row[0], number(row[1]))).collect();
    assert_eq!(
        told,
        [
            ("header", HEADER_BYTES),
            ("frame alignment", FRAME_ALIGN),
            ("largest frame", FRAME_BYTES_MAX),
            ("largest handshake frame", HANDSHAKE_FRAME_BYTES_MAX),
            ("longest address", ADDRESS_BYTES_MAX),
            ("longest text of a failure or refusal", FAILURE_DETAIL_BYTES_MAX),
            ("addresses in a dictionary", LINK_DICTIONARY_MAX),
            ("hosted types in a handshake", HOSTED_TYPES_MAX),
        ]
    );
}
