// SPDX-License-Identifier: Apache-2.0

// Package scale measures `mustang agent` with a real API server that holds a large cluster of made-up objects, and
// kube-proxy's nftables mode beside it on the same server:
//
//	go test -run xxx -bench . -benchtime 1x -timeout 30m ./test/scale
//
// MUSTANG_KUBERNETES is the directory with Kubernetes' programs, which test/k8s builds. The proxies run one after the
// other, in turns, each in its own network namespace with real pods. Time and memory are measured until a pod really
// reaches the services.
package scale
