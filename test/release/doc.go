// SPDX-License-Identifier: Apache-2.0

// Package release tests the parts of a release other than the Debian package: the version, and the container image,
// which runs in Docker.
package release
