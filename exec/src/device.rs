//! The devices of a run, one a rank.
//!
//! One law: a device is never touched before it was found by enumeration, because burn panics on a missing GPU and
//! this crate must not.

pub use burn::tensor::Device;
use std::fmt;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// One CPU core a rank (burn's Flex).
    Cpu,
    /// An NVIDIA GPU a rank (burn's CUDA).
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

/// Why there are no devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The program was built without the feature.
    #[error("this build has no CUDA support; build with --features cuda")]
    NoCudaSupport,
    /// There is no GPU, or its driver is missing.
    #[error("no CUDA device was found: is there an NVIDIA GPU, and is its driver installed?")]
    NoCudaDevice,
    /// Fewer devices than ranks.
    #[error("{ranks} ranks need {ranks} CUDA devices, but there are {devices}; --share-devices lets ranks share them")]
    TooFew {
        /// Ranks of the run.
        ranks: usize,
        /// Devices found.
        devices: usize,
    },
}

/// A device for each of `ranks` ranks, without autodiff; with `share` several ranks may get the same GPU, in turn.
///
/// # Errors
/// [`DeviceError`]; for [`DeviceKind::Cpu`] there is none.
pub fn open(kind: DeviceKind, ranks: usize, share: bool) -> Result<Vec<Device>, DeviceError> {
    match kind {
        DeviceKind::Cpu => Ok((0..ranks).map(|_| Device::flex()).collect()),
        DeviceKind::Cuda => assign(&cuda_devices()?, ranks, share),
    }
}

/// What the ranks run on, in a few words.
pub fn describe(kind: DeviceKind, devices: &[Device]) -> String {
    let distinct = devices.iter().enumerate().filter(|(i, d)| !devices[..*i].contains(d)).count();
    match kind {
        DeviceKind::Cpu => format!("CPU (burn Flex), {} ranks, one thread each", devices.len()),
        DeviceKind::Cuda => format!("{distinct} CUDA devices for {} ranks", devices.len()),
    }
}

/// Gives rank `i` device `i`, or device `i mod n` of `n` when they may be shared.
fn assign<T: Clone>(found: &[T], ranks: usize, share: bool) -> Result<Vec<T>, DeviceError> {
    if found.is_empty() {
        return Err(DeviceError::NoCudaDevice);
    }
    if found.len() < ranks && !share {
        return Err(DeviceError::TooFew { ranks, devices: found.len() });
    }
    Ok(found.iter().cycle().take(ranks).cloned().collect())
}

#[cfg(feature = "cuda")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature there is an error")]
fn cuda_devices() -> Result<Vec<Device>, DeviceError> {
    Ok(Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect())
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> Result<Vec<Device>, DeviceError> {
    Err(DeviceError::NoCudaSupport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_a_cpu() {
        let devices = open(DeviceKind::Cpu, 3, false).unwrap();
        assert_eq!(devices.len(), 3);
        assert!(devices.iter().all(|d| !d.is_autodiff()));
        assert_eq!(describe(DeviceKind::Cpu, &devices), "CPU (burn Flex), 3 ranks, one thread each");
    }

    #[test]
    fn gpus_are_counted_before_they_are_given_out() {
        assert_eq!(assign(&['a', 'b'], 2, false), Ok(vec!['a', 'b']));
        assert_eq!(assign(&['a', 'b'], 3, true), Ok(vec!['a', 'b', 'a']));
        assert_eq!(assign::<char>(&[], 1, true), Err(DeviceError::NoCudaDevice));
        let error = assign(&['a', 'b'], 3, false).unwrap_err().to_string();
        assert!(error.contains("3 ranks") && error.contains("there are 2") && error.contains("--share-devices"));
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_says_so() {
        let error = open(DeviceKind::Cuda, 1, false).unwrap_err();
        assert_eq!(error.to_string(), "this build has no CUDA support; build with --features cuda");
    }
}
