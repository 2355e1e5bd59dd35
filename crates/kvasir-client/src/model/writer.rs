//! The profile that encodes a model's caches: given by the caller, or automatic.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use kvasir_api::{ErrorCode, ProfileInfo};
use kvasir_codec::{
    ChunkEncoder, CpuEncoder, KvBuffer, LevelNote, Profile, ProfileError, STARTER_RECIPE, exact_starter,
    starter,
};
use kvasir_types::{ModelSpec, ProfileHash};
use tokio::time::Instant;

use crate::{
    Error,
    limits::{
        EXACT_PROFILES_TRIED_MAX, PROFILE_ANNOUNCED, PROFILE_ERROR_MAX, PROFILES_MAX, PROFILES_REFUSED_MAX,
    },
    rest::Client,
};

/// Profiles that a codec does not encode with, at all or where the writer's does not fit. Their bytes are what they
/// are named by, so that never changes.
#[derive(Default)]
pub(crate) struct Unsuitable(Mutex<BTreeSet<ProfileHash>>);

impl Unsuitable {
    fn has(&self, profile: &ProfileHash) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(profile)
    }

    fn remember(&self, profile: ProfileHash) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(profile);
        if known.len() > PROFILES_REFUSED_MAX {
            known.pop_first();
        }
    }
}

/// A profile and its encoder.
pub(crate) struct Writer {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    encoder: Arc<dyn ChunkEncoder>,
    /// Whether the service has the profile.
    published: AtomicBool,
    /// When the service was asked for the profile in force; `None` if the caller gave one.
    chosen_at: Option<Instant>,
}

impl Writer {
    /// A writer with the caller's profile.
    ///
    /// # Errors
    /// [`ProfileError`] if the profile is of another model.
    pub(crate) fn given(spec: &Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        let encoder = Arc::new(CpuEncoder::new(Arc::clone(spec), Arc::clone(&profile))?);
        let (spec, published) = (Arc::clone(spec), AtomicBool::new(false));
        Ok(Self { spec, profile, encoder, published, chosen_at: None })
    }

    /// A writer with the profile in force at the service, one with an exact level if `exact`. If there is none,
    /// `current` is kept; without it one is made from a sample of the model's KV and published.
    pub(crate) async fn choose(
        client: &Client,
        spec: &Arc<ModelSpec>,
        current: Option<&Self>,
        exact: bool,
        unsuitable: &Unsuitable,
        sample: Sample<'_>,
    ) -> Result<Self, Error> {
        if let Some(found) = Self::in_force(client, spec, current, exact, unsuitable).await? {
            return Ok(found);
        }
        if let Some(Self { profile, encoder, .. }) = current {
            // The service has lost it, or lists too many before it.
            let kept = Self::chosen(spec, profile, encoder);
            kept.publish_again(client).await?;
            return Ok(kept);
        }
        let profile = sample.train(spec, exact).await?;
        // Training takes seconds, and another client may have published a profile in the meantime.
        if let Some(found) = Self::in_force(client, spec, None, exact, unsuitable).await? {
            return Ok(found);
        }
        let made = Self { chosen_at: Some(Instant::now()), ..Self::given(spec, Arc::new(profile))? };
        made.publish(client).await?;
        let level = made.profile.levels().last().copied().unwrap_or_default();
        tracing::info!(
            profile = %made.profile.hash(),
            bits_per_element = level.bits_per_element,
            error = level.nmse,
            "the service had no profile for this quality; made one from the first cache and published it"
        );
        Ok(made)
    }

    /// A writer with the model's first profile, whose error does not depend on the text. If the service has
    /// none, one is made from a sample and published. Profiles that are `unsuitable` are not fetched again.
    pub(crate) async fn starter(
        client: &Client,
        spec: &Arc<ModelSpec>,
        unsuitable: &Unsuitable,
        sample: Sample<'_>,
    ) -> Result<Self, Error> {
        let model = spec.model_id();
        let mut listed = client.list_profiles(&model).await?.profiles;
        listed.retain(|info| !unsuitable.has(&info.profile_hash));
        listed.sort_by_key(|info| (info.stored_at_ms, info.profile_hash));
        for info in listed.into_iter().take(PROFILES_MAX) {
            match client.listed_profile(spec, &info).await {
                // Others would not load chunks whose errors are unknown.
                Ok(profile) if is_first(&profile) && !profile.is_lossless() && profile.is_measured() => {
                    let found = Self::given(spec, Arc::new(profile))?;
                    return Ok(Self::chosen(spec, &found.profile, &found.encoder));
                }
                Ok(_) | Err(Error::Profile(_)) => unsuitable.remember(info.profile_hash),
                Err(error) => return Err(error),
            }
        }
        let made = Self::given(spec, Arc::new(sample.train(spec, false).await?))?;
        made.publish(client).await?;
        Ok(made)
    }

    /// Whether chunks may lose more than [`Quality::Transparent`](kvasir_types::Quality) allows without an
    /// explicit request.
    pub(crate) fn may_miss(&self) -> bool {
        self.chosen_at.is_some() && !is_first(&self.profile)
    }

    /// A writer with the profile in force at the service, if there is one; among those with an exact level if
    /// `exact`. Profiles that are `unsuitable` are not fetched again.
    pub(crate) async fn in_force(
        client: &Client,
        spec: &Arc<ModelSpec>,
        current: Option<&Self>,
        exact: bool,
        unsuitable: &Unsuitable,
    ) -> Result<Option<Self>, Error> {
        let model = spec.model_id();
        let is_suitable: fn(&Profile) -> bool = if exact { is_exact } else { is_fine };
        let listed = match client.list_profiles(&model).await {
            // The service's bucket was emptied in the meantime.
            Err(error) if error.code() == Some(ErrorCode::UnknownModel) => {
                client.register_model(spec).await?;
                Vec::new()
            }
            listed => listed?.profiles,
        };
        // Any number of others may be newer than one with an exact level. A client keeps it: to look for a newer one of
        // these, it would fetch them all. A first profile is larger than others, and not kept.
        let pinned = current.filter(|now| exact && !is_first(&now.profile)).map(|now| now.profile.hash());
        let tries_many = exact && (current.is_none() || pinned.is_some());
        let mut preferred = by_preference(listed, SystemTime::now());
        preferred.retain(|info| !unsuitable.has(&info.profile_hash));
        preferred.sort_by_key(|info| pinned != Some(info.profile_hash));
        preferred.truncate(if tries_many { EXACT_PROFILES_TRIED_MAX } else { PROFILES_MAX });
        for info in preferred {
            let hash = info.profile_hash;
            if let Some(Self { profile, encoder, .. }) = current.filter(|now| now.profile.hash() == hash) {
                return Ok(Some(Self::chosen(spec, profile, encoder)));
            }
            let fetched = async {
                let profile = client.listed_profile(spec, &info).await?;
                let found = is_suitable(&profile).then(|| Self::given(spec, Arc::new(profile)));
                Ok::<_, Error>(found.transpose()?)
            };
            match fetched.await {
                Ok(Some(found)) => {
                    return Ok(Some(Self::chosen(spec, &found.profile, &found.encoder)));
                }
                Ok(None) => {}
                // Its author runs another version, is careless or hostile; this client need not encode with it.
                Err(Error::Profile(error)) => {
                    tracing::debug!(%error, %hash, "skipping a profile that cannot be used")
                }
                Err(error) => return Err(error),
            }
            unsuitable.remember(hash);
        }
        Ok(None)
    }

    /// A writer with a profile that the service has just reported.
    fn chosen(spec: &Arc<ModelSpec>, profile: &Arc<Profile>, encoder: &Arc<dyn ChunkEncoder>) -> Self {
        Self {
            spec: Arc::clone(spec),
            profile: Arc::clone(profile),
            encoder: Arc::clone(encoder),
            published: AtomicBool::new(true),
            chosen_at: Some(Instant::now()),
        }
    }

    /// The profile, if the caller gave it.
    pub(crate) fn given_profile(&self) -> Option<&Arc<Profile>> {
        self.chosen_at.is_none().then_some(&self.profile)
    }

    /// Whether to ask the service again for the profile in force.
    pub(crate) fn is_stale(&self) -> bool {
        self.chosen_at.is_some_and(|at| at.elapsed() >= PROFILE_ANNOUNCED)
    }

    pub(crate) const fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub(crate) const fn encoder(&self) -> &Arc<dyn ChunkEncoder> {
        &self.encoder
    }

    /// Publishes the profile, once.
    pub(crate) async fn publish(&self, client: &Client) -> Result<(), Error> {
        if !self.published.load(Ordering::Acquire) {
            client.put_profile(&self.spec.model_id(), self.profile.to_bytes()).await?;
            self.published.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Registers the model and publishes the profile again, after the service has lost them.
    pub(crate) async fn publish_again(&self, client: &Client) -> Result<(), Error> {
        client.register_model(&self.spec).await?;
        self.published.store(false, Ordering::Release);
        self.publish(client).await
    }
}

/// KV of a model, for training its first profile.
#[derive(Clone, Copy)]
pub(crate) struct Sample<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) first_position: u64,
    pub(crate) kv: &'a Arc<KvBuffer>,
}

impl Sample<'_> {
    async fn train(self, spec: &Arc<ModelSpec>, exact: bool) -> Result<Profile, Error> {
        let (spec, kv, tokens) = (Arc::clone(spec), Arc::clone(self.kv), self.tokens.to_vec());
        let first_position = self.first_position;
        let trained = tokio::task::spawn_blocking(move || {
            let make = if exact { exact_starter } else { starter };
            make(&spec, &tokens, first_position, &*kv)
        });
        Ok(trained.await??)
    }
}

/// Whether a client made the profile from the first cache that it saved.
pub(super) fn is_first(profile: &Profile) -> bool {
    profile.training().recipe == STARTER_RECIPE
}

/// Whether chunks of a profile are found in quality exact: they have an exact level, and record their errors.
pub(super) fn is_exact(profile: &Profile) -> bool {
    profile.is_lossless() && profile.is_measured()
}

/// Whether chunks of a profile decode nearly losslessly, and record their errors: by default, others are not
/// loaded. Other profiles are used only on explicit request, and so is the first one for exact chunks, which are larger than
/// others.
pub(super) fn is_fine(profile: &Profile) -> bool {
    let is_fine = |level: &LevelNote| level.nmse <= PROFILE_ERROR_MAX;
    let is_fine = match profile.is_lossless() {
        true => !is_first(profile),
        false => profile.levels().last().is_some_and(is_fine),
    };
    is_fine && profile.is_measured()
}

/// Profiles in their order of precedence: the newest that readers had time to fetch, then the others from the
/// oldest, so that clients that start together choose the same one.
pub(super) fn by_preference(profiles: Vec<ProfileInfo>, now: SystemTime) -> Vec<ProfileInfo> {
    let age = |info: &ProfileInfo| {
        let stored_at = SystemTime::UNIX_EPOCH + Duration::from_millis(info.stored_at_ms.unwrap_or(0));
        now.duration_since(stored_at).unwrap_or_default()
    };
    let (mut known, mut young): (Vec<_>, Vec<_>) =
        profiles.into_iter().partition(|info| age(info) >= PROFILE_ANNOUNCED);
    known.sort_by_key(|info| (std::cmp::Reverse(info.stored_at_ms), info.profile_hash));
    young.sort_by_key(|info| (info.stored_at_ms, info.profile_hash));
    known.append(&mut young);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_readers_know_is_in_force_and_the_first_of_those_that_are_new() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let info = |name: u8, seconds: u64| ProfileInfo {
            profile_hash: [name; 32].into(),
            bytes: 1,
            stored_at_ms: Some(seconds * 1000),
        };
        let order = |listed: &[ProfileInfo]| {
            let ordered = by_preference(listed.to_vec(), now);
            ordered.iter().map(|info| info.profile_hash.as_bytes()[0]).collect::<Vec<_>>()
        };
        assert_eq!(order(&[]), [0; 0]);
        assert_eq!(order(&[info(1, 9_990), info(2, 9_980), info(3, 9_980)]), [2, 3, 1]);
        assert_eq!(order(&[info(1, 9_990), info(2, 5_000), info(3, 6_000), info(4, 9_800)]), [3, 2, 4, 1]);
        // An earlier version of the service omits the time, and a store's clock may be ahead.
        let unsaid = ProfileInfo { stored_at_ms: None, ..info(5, 0) };
        assert_eq!(order(&[info(1, 20_000), unsaid, info(2, 9_000)]), [2, 5, 1]);
    }
}
