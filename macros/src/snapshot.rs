//! What the macros write, kept as a file that a person can read: `tests/expansion/room.rs`.
//!
//! `EXPANSION=overwrite cargo test -p siloring-macros` writes it anew; its difference is reviewed
//! like any other code.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use proc_macro2::TokenStream;
use quote::quote;

use crate::{grain, message, methods};

#[test]
fn the_expansion_is_the_one_that_was_reviewed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expansion/room.rs");
    let expanded = formatted(&everything());
    if std::env::var("EXPANSION").is_ok_and(|value| value == "overwrite") {
        std::fs::write(&path, &expanded).expect("the snapshot can be written");
    }
    let reviewed = std::fs::read_to_string(&path).expect("the snapshot can be read");
    assert!(
        expanded == reviewed,
        "the expansion changed; look at it with EXPANSION=overwrite and git diff\n{expanded}"
    );
}

fn everything() -> TokenStream {
    let line = quote! {
        struct Line { from: String, text: String }
    };
    let line = message::expand(quote!(type = "chat.line", version = 2, was(LineV1)), &line);
    let state = grain::expand(quote! {
        #[grain(type = "chat.room", placement = "hash")]
        pub struct Room { members: Vec<String> }
    });
    let state = state.unwrap_or_else(darling::Error::write_errors);
    let methods = methods::expand(&TokenStream::new(), &room());
    quote!(#line #state #methods)
}

fn room() -> TokenStream {
    quote! {
        impl Room {
            async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> { Ok(()) }

            /// Adds a member.
            pub async fn join(&mut self, name: String) {}

            /// Posts a line.
            #[method(id = "say", version = 2)]
            #[was(1, fn(line: LineV1, loud: bool) -> Result<u32, RoomError>)]
            pub async fn post(&self, ctx: &Ctx, line: &Archived<Line>) -> Result<u64, RoomError> {
                Ok(7)
            }

            #[on_event]
            async fn on_line(&mut self, ctx: &Ctx, line: &Archived<Line>) -> Result<(), String> {
                Ok(())
            }
        }
    }
}

/// `tokens` as rustfmt writes them.
fn formatted(tokens: &TokenStream) -> String {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout", "--config", "max_width=100"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("rustfmt is part of the toolchain");
    let mut input = rustfmt.stdin.take().expect("its input is piped");
    input.write_all(tokens.to_string().as_bytes()).expect("rustfmt reads its input");
    drop(input);
    let output = rustfmt.wait_with_output().expect("rustfmt ends");
    assert!(output.status.success(), "the expansion is no Rust: {tokens}");
    String::from_utf8(output.stdout).expect("rustfmt writes text")
}
