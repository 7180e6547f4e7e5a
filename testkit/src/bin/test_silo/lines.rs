//! The commands of the messages that two releases of the test silo have in their own ways.
//!
//! | verb | does | answers |
//! |---|---|---|
//! | `take KEY NUMBER MS` | calls a board with a line | an outcome with the next number |
//! | `own KEY MS` | calls a method that only this release has | an outcome |
//! | `keep KEY NUMBER MS` | has a board store a line | an outcome |
//! | `kept KEY MS` | | an outcome with the number of the stored line |
//! | `join KEY` | subscribes the board `KEY` to the stream `KEY` | `subscribed`, or why not |
//! | `put KEY NUMBER MS` | publishes a line | an outcome |
//! | `last KEY MS` | | an outcome with the number of the last line that a board heard |
//! | `load_lines THREADS KEYS` | calls boards and publishes without pause until `rest` | |
//!
//! A line that was misread is a panic in its handler, and so `HandlerFailed`; a record that this
//! release cannot read is the outcome `Handler`.

use std::sync::Arc;

use serde_json::{Value, json};
use siloring::Stream;
use siloring::prelude::*;

use crate::desk::{Desk, block_on, millis, number, timed};
use crate::program::{Board, BoardRef as _, Line, Unreadable};

/// The namespace of the lines' streams.
const NAMESPACE: &str = "line";

impl Desk {
    pub(crate) fn answer_of_lines(self: &Arc<Self>, words: &[&str]) -> Value {
        match words {
            ["take", key, of, ms] => timed(async {
                let line = self.board(key).take(Line::of(number(of))).deadline(millis(ms)).await?;
                Ok(if line.is_sound() { line.number } else { 0 })
            }),
            ["own", key, ms] => timed(self.board(key).own().deadline(millis(ms))),
            ["keep", key, of, ms] => {
                let kept = self.board(key).keep(Line::of(number(of))).deadline(millis(ms));
                stored(block_on(kept).map(|()| None))
            }
            ["kept", key, ms] => stored(block_on(self.board(key).kept().deadline(millis(ms)))),
            ["join", key] => {
                let joining = self.lines(key).subscription("board");
                let joined = block_on(joining.grain::<Board>(*key, Board::ON_LINE));
                json!({ "result": joined.map_or_else(|e| e.to_string(), |_| "subscribed".into()) })
            }
            ["put", key, of, ms] => timed(async {
                let published = self.lines(key).publish(&Line::of(number(of)));
                let published = published.deadline(millis(ms)).await;
                published.map(|it| u64::from(it.handled)).map_err(CallError::Delivery)
            }),
            ["last", key, ms] => timed(self.board(key).last().deadline(millis(ms))),
            ["load_lines", threads, keys] => self.load(threads, keys, Self::line_once),
            _ => json!({ "error": "no such command" }),
        }
    }

    fn board(&self, key: &str) -> GrainRef<Board> {
        self.handle.grain::<Board>(key)
    }

    fn lines(&self, key: &str) -> Stream<Line> {
        Stream::new(&self.handle, &self.streams, NAMESPACE, key).expect("tests name streams")
    }

    /// A call and an event, in turn.
    fn line_once(&self, key: u64, draw: u64) -> Result<(), CallError> {
        let key = format!("load-{key}");
        if draw.is_multiple_of(2) {
            let line = block_on(self.board(&key).take(Line::of(draw)))?;
            assert!(line.is_sound() && line.number == draw + 1, "a reply was misread");
            return Ok(());
        }
        let published = block_on(self.lines(&key).publish(&Line::of(draw)).into_future());
        published.map(drop).map_err(CallError::Delivery)
    }
}

fn stored(result: Result<Option<Line>, CallError<Unreadable>>) -> Value {
    match result {
        Ok(line) => {
            let number = line.map(|line| if line.is_sound() { line.number } else { 0 });
            json!({ "outcome": "handled", "value": number, "ms": 0.0 })
        }
        Err(CallError::Handler(Unreadable { why })) => {
            json!({ "outcome": "Handler", "detail": why, "ms": 0.0 })
        }
        Err(CallError::Delivery(failure)) => {
            json!({ "outcome": failure.name(), "detail": failure.to_string(), "ms": 0.0 })
        }
    }
}
