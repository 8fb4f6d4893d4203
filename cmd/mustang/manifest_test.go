// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/kube"
)

// TestManifest reads the manifest: the agent knows the flags there, and may read what it watches.
func TestManifest(t *testing.T) {
	file, err := os.Open("../../deploy/mustang.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var args []string
	may := map[string][]string{}
	err = document.Each(file, func(_ string, data jsontext.Value) error {
		var o struct {
			document.Object
			Rules []struct {
				APIGroups []string `json:"apiGroups"`
				Resources []string `json:"resources"`
				Verbs     []string `json:"verbs"`
			} `json:"rules"`
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []string `json:"args"`
						} `json:"containers"`
					} `json:"spec"`
				} `json:"template"`
			} `json:"spec"`
		}
		if err := document.Decode(data, &o); err != nil {
			return err
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			args = c.Args
		}
		for _, r := range o.Rules {
			for _, resource := range r.Resources {
				may[r.APIGroups[0]+"/"+resource] = r.Verbs
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(args) == 0 || args[0] != "agent" {
		t.Fatalf("the container has the arguments %q", args)
	}
	if err := new(config).agent().ParseFlags(args[1:]); err != nil {
		t.Error(err)
	}
	for _, k := range []kube.Kind{
		kube.Nodes, kube.Namespaces, kube.Pods, kube.NetworkPolicies, kube.ClusterNetworkPolicies, kube.Services, kube.EndpointSlices,
	} {
		if verbs := may[k.Group+"/"+k.Resource]; !slices.Equal(verbs, []string{"get", "list", "watch"}) {
			t.Errorf("the agent may %q %s", verbs, k.Resource)
		}
	}
	if !slices.Equal(may["/nodes/status"], []string{"patch"}) || !slices.Equal(may["/events"], []string{"create", "patch"}) {
		t.Errorf("the agent may %q the status of nodes, and %q events", may["/nodes/status"], may["/events"])
	}
}
