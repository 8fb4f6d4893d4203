// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/document"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/nodenet"
	"mustang/internal/testkit"
)

// TestManifest reads the manifest: the agent has the flags there, and may read what it watches.
func TestManifest(t *testing.T) {
	file := testkit.Must(os.Open("../../deploy/mustang.yaml"))(t)
	defer file.Close()
	var args []string
	may := map[string][]string{}
	testkit.Succeed(t, document.Each(file, func(_ string, data jsontext.Value) error {
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
	}))
	testkit.Require(t, len(args) != 0 && args[0] == "agent", "the container has the arguments %q", args)
	testkit.Succeed(t, new(config).agent().ParseFlags(args[1:]))
	for _, k := range []kube.Kind{
		kube.Nodes, kube.Namespaces, kube.Pods, kube.NetworkPolicies, kube.ClusterNetworkPolicies, kube.Services,
		kube.EndpointSlices,
	} {
		verbs := may[k.Group+"/"+k.Resource]
		testkit.Check(t, slices.Equal(verbs, []string{"get", "list", "watch"}), "the agent may %q %s", verbs, k.Resource)
	}
	if verbs := may["apiextensions.k8s.io/customresourcedefinitions"]; !slices.Equal(verbs, []string{"get"}) {
		t.Errorf("the agent may %q the definition of ClusterNetworkPolicies", verbs)
	}
	testkit.Check(t, slices.Equal(may["/nodes/status"], []string{"patch"}) &&
		slices.Equal(may["/events"], []string{"get", "create", "patch"}),
		"the agent may %q the status of nodes, and %q events", may["/nodes/status"], may["/events"])
}

// TestCleanupArguments reads the arguments that the chart's value cleanup, and the patch in the documentation, give the
// container.
func TestCleanupArguments(t *testing.T) {
	chart := testkit.Must(os.ReadFile("../../packaging/chart/templates/daemonset.yaml"))(t)
	docs := testkit.Must(os.ReadFile("../../docs/operate.md"))(t)
	_, after, _ := strings.Cut(string(chart), "{{- if .Values.cleanup }}\n          args:\n")
	block, _, _ := strings.Cut(after, "{{- else }}")
	var ofChart, ofDocs []string
	for _, m := range regexp.MustCompile(`(?m)^ +- (.*)$`).FindAllStringSubmatch(block, -1) {
		ofChart = append(ofChart, m[1])
	}
	patch := regexp.MustCompile(`containers/0/args", "value": (\[.*\])}`).FindSubmatch(docs)
	testkit.Require(t, patch != nil, "the documentation has no patch")
	testkit.Succeed(t, json.Unmarshal(patch[1], &ofDocs))
	for _, args := range [][]string{ofChart, ofDocs} {
		cmd := node.AgentCleanup(&cli.Config{Environment: cli.Environment{Getenv: os.Getenv}})
		testkit.Require(t, len(args) >= 4 && args[0] == "agent" && args[1] == cmd.Name() && cmd.ParseFlags(args[2:]) == nil,
			"the container has the arguments %q", args)
		for _, flag := range []string{"all", "stay"} {
			on, err := cmd.Flags().GetBool(flag)
			testkit.Check(t, err == nil && on, "%q: --%s is %v", args, flag, on)
		}
	}
}

// TestDocumentedValues compares the table of the chart's values in the documentation with the values and with the flags
// that they set.
func TestDocumentedValues(t *testing.T) {
	read := func(path string) string {
		return string(testkit.Must(os.ReadFile("../../" + path))(t))
	}
	var values map[string]any
	testkit.Succeed(t, yaml.Unmarshal([]byte(read("packaging/chart/values.yaml")), &values))
	leaves := map[string]any{}
	for name, value := range values {
		group, ok := value.(map[string]any)
		if !ok || !slices.Contains([]string{"image", "apiServer", "agent", "cni", "loadBalancer"}, name) {
			leaves[name] = value
		}
		for key, value := range group {
			if _, whole := leaves[name]; !whole {
				leaves[name+"."+key] = value
			}
		}
	}
	template, agent := read("packaging/chart/templates/daemonset.yaml"), new(config).agent()
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)` \\| (.*?) \\| (.*)\\|$").FindAllStringSubmatch(
		read("docs/kubernetes.md"), -1) {
		name, standard, text := row[1], row[2], row[3]
		value, ok := leaves[name]
		if !ok {
			continue // of another table
		}
		delete(leaves, name)
		plain, ok := strings.CutPrefix(standard, "`")
		testkit.Check(t, !ok || strings.Contains(standard, ": ") || fmt.Sprint(value) == strings.TrimSuffix(plain, "`"),
			"%s is documented to be %s by default, and is %v", name, standard, value)
		flag := regexp.MustCompile("^`--([a-z-]+)`").FindStringSubmatch(text)
		if flag == nil {
			continue
		}
		testkit.Check(t, agent.Flags().Lookup(flag[1]) != nil, "%s: the agent has no flag --%s", name, flag[1])
		set := regexp.MustCompile(`(range \.Values\.` + regexp.QuoteMeta(name) + ` }}\s+- --` + flag[1] + `=|--` +
			flag[1] + `={{ \.Values\.` + regexp.QuoteMeta(name) + ` }})`)
		testkit.Check(t, set.MatchString(template), "the chart does not set --%s to %s", flag[1], name)
	}
	for name := range leaves {
		t.Errorf("%s is not documented", name)
	}
}

// TestValuesSchema compares the chart's schema with its values, and with the values of the flags.
func TestValuesSchema(t *testing.T) {
	const path = "../../packaging/chart/values.schema.json"
	schema := testkit.Must(jsonschema.NewCompiler().Compile(path))(t)
	text := testkit.Must(os.ReadFile(path))(t)
	var form struct {
		Properties map[string]struct {
			Properties map[string]struct{ Enum []string }
		}
	}
	testkit.Succeed(t, json.Unmarshal(text, &form))
	routing := func(text string) bool { return new(nodenet.Routing).UnmarshalText([]byte(text)) == nil }
	for key, takes := range map[string]func(string) bool{
		"link": among(netconf.Links()), "services": among(netconf.Services()), "cniVersion": among(install.Versions()),
		"routing": routing,
	} {
		enum := form.Properties["agent"].Properties[key].Enum
		testkit.Check(t, len(enum) >= 4 && !slices.ContainsFunc(enum, func(value string) bool { return !takes(value) }),
			"agent.%s may be %q", key, enum)
	}
	links := form.Properties["agent"].Properties["link"].Enum
	testkit.Check(t, slices.Equal(links, netconf.Links()), "agent.link may be %q, want %q", links, netconf.Links())
	defaults := testkit.Must(os.ReadFile("../../packaging/chart/values.yaml"))(t)
	var values map[string]any
	testkit.Succeed(t, yaml.Unmarshal(defaults, &values))
	for name, group := range values {
		group, ok := group.(map[string]any)
		for key := range group {
			if _, known := form.Properties[name].Properties[key]; ok && !known && form.Properties[name].Properties != nil {
				t.Errorf("the schema does not know %s.%s", name, key)
			}
		}
	}
	for wrong, change := range map[string]func(){
		"":                   func() {},
		"lnk":                func() { values["agent"].(map[string]any)["lnk"] = "veth" },
		"at '/agent/link'":   func() { values["agent"].(map[string]any)["link"] = "foo" },
		"clean":              func() { values["clean"] = true },
		"/apiServer/port":    func() { values["apiServer"].(map[string]any)["port"] = "https" },
		"/agent/pathCheck":   func() { values["agent"].(map[string]any)["pathCheck"] = "30s" },
		"/agent/routing":     func() { values["agent"] = map[string]any{"encrypt": true, "routing": "off"} },
		"/apiServer/host":    func() { values["apiServer"].(map[string]any)["host"] = "192.0.2.1:6443" },
		"/agent/uplinks/":    func() { values["agent"].(map[string]any)["uplinks"] = []any{"eth0: x"} },
		"/agent/extraFlags/": func() { values["agent"].(map[string]any)["extraFlags"] = []any{7} },
	} {
		values = nil
		testkit.Succeed(t, yaml.Unmarshal(defaults, &values))
		change()
		err := schema.Validate(values)
		testkit.Check(t, (err == nil) == (wrong == "") && (err == nil || strings.Contains(err.Error(), wrong)),
			"%q: %v", wrong, err)
	}
}

func among(list []string) func(string) bool {
	return func(text string) bool { return slices.Contains(list, text) }
}

// TestClusterImageIsTheCharts compares the default image with the image of the chart.
func TestClusterImageIsTheCharts(t *testing.T) {
	var chart struct {
		AppVersion string `yaml:"appVersion"`
	}
	var values struct {
		Image struct{ Repository string }
	}
	for name, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		text := testkit.Must(os.ReadFile("../../packaging/chart/" + name))(t)
		testkit.Succeed(t, yaml.Unmarshal(text, into))
	}
	want := values.Image.Repository + ":" + chart.AppVersion
	testkit.Check(t, clusterImage == want || clusterImage == "docker.io/library/"+want, "the image is %s, the chart's %s",
		clusterImage, want)
}

// TestBenchClusterNeedsNodes has a cluster without nodes, and a kubeconfig without the context.
func TestBenchClusterNeedsNodes(t *testing.T) {
	empty := kubetest.Start(t).Kubeconfig(t)
	for context, want := range map[string]string{"": "no node takes pods: the cluster has none", "other": "other"} {
		args := []string{"bench", "cluster", "--out", t.TempDir(), "--kubeconfig", empty, "--context", context}
		if code, _, stderr := command(t, nil, args...); code != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("context %q: exit code %d, %s; want %s", context, code, stderr, want)
		}
	}
}
