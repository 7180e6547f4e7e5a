//! Calls at the limits: size, time, cycles, floods.

use std::time::Duration;

use siloring_core::limits::{BODY_BYTES_MAX, DEADLINE_DEFAULT};
use siloring_testkit::sim::Fault;

use super::scenario::{
    Echo, New, Note, Opening, Outcome, S1, S2, S3, SECOND, check, ensure, note, serve_hub, up,
};

/// W2. A payload just below, at, and just above the limit.
#[test]
fn a_payload_is_delivered_up_to_the_limit_and_refused_above_it() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new())?;
        let log = serve_hub(&mut cluster, S2, "portal/large", Opening::Plain);
        cluster.run_for(SECOND)?;
        // A note's archive is its bytes, padded, and its fixed part.
        let fixed = siloring_core::Body::encode(&Note::default()).len();
        let limit = BODY_BYTES_MAX - fixed;
        for (bytes, expected) in [
            (limit - 64, "Handled"),
            (limit - fixed, "Handled"),
            (limit + 2 * fixed + 64, "TooLarge"),
        ] {
            let heard = cluster.block_on(S1, move |node| async move {
                note(&node, "portal/large", &Note { number: 1, bytes: vec![7; bytes] }).await
            })?;
            ensure!(heard.name() == expected, "{bytes} bytes: {heard:?}");
        }
        ensure!(log.numbers().len() == 2, "{} arrived", log.numbers().len());
        Ok(())
    }
    check(scenario, &["refusals-swallowed"]);
}
