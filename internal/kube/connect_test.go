// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConnectReadsFilesOnly refuses what has no end, or would be waited for.
func TestConnectReadsFilesOnly(t *testing.T) {
	t.Parallel()
	pipe, large := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "large")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxConfig+1); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"/dev/zero": ": want a regular file", "/proc": ": want a regular file", pipe: ": want a regular file",
		large: ": more than 64 MiB", "/nonexistent": ": no such file",
	} {
		if _, err := Connect(file); err == nil || err.Error() != "--kubeconfig "+file+want {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestConnectInCluster names what is wrong with the address of the API server that the pod was given.
func TestConnectInCluster(t *testing.T) {
	for host, want := range map[string]string{
		"":                        "the address of the API server is missing: apiServer.host of the chart, ",
		"API_SERVER":              "the address of the API server is missing: apiServer.host of the chart, ",
		"https://192.0.2.1:6443/": "KUBERNETES_SERVICE_HOST=https://192.0.2.1:6443/: want an address or a name",
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", host)
		if _, err := Connect(""); err == nil || !strings.HasPrefix(err.Error(), "connect to Kubernetes: "+want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", host, err)
		}
	}
}
