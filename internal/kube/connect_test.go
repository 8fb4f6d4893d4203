// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"testing"
)

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
