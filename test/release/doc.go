// SPDX-License-Identifier: Apache-2.0

// Package release tests what a release is made of besides the Debian package: the version, and the container image,
// which runs in Docker.
package release
