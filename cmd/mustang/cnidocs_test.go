// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

const (
	cniPage      = "../../docs/cni.md"
	cniReference = "../../docs/reference/cni.md"
	cniSchema    = "../../docs/cni.schema.json"
)

// judges are the two that have to agree on configurations.
type judges struct{ schema *jsonschema.Schema }

func newJudges(t *testing.T) judges {
	t.Helper()
	return judges{testkit.Must(jsonschema.NewCompiler().Compile(cniSchema))(t)}
}

func (j judges) ask(t *testing.T, text string) (bySchema, byPlugin error) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	testkit.Require(t, err == nil, "%s: %v", text, err)
	config := []byte(text)
	if strings.Contains(text, `"plugins"`) {
		if config, err = install.PluginConfig(config); err != nil {
			return j.schema.Validate(value), err
		}
	}
	_, byPlugin = netconf.Parse(config)
	return j.schema.Validate(value), byPlugin
}

// configForms are the forms of testdata/cniconfigs.txt.
var configForms = map[string]string{
	"ours":    ours("$1"),
	"routed":  ours(`,"link":"macvlan","hostAddresses":[$1]$2`),
	"runtime": ours(`,"runtimeConfig":{$1}`),
	"dhcp":    `{"name":"pods","type":"mustang-cni","ipam":{"type":"dhcp"}$1}`,
	"ranges":  `{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":$1}}`,
	"chained": `{"name":"pods","type":"mustang-cni","chained":true$1}`,
	"routes": `{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":[[{"subnet":"10.77.0.0/16"}]],` +
		`"routes":[$1]}$2}`,
}

func ours(more string) string {
	return `{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":[[{"subnet":"10.77.0.0/16"}]]}` + more +
		`}`
}

// TestCNISchema has the schema and the plugin judge the same configurations.
func TestCNISchema(t *testing.T) {
	j := newJudges(t)
	taken, seen := "", 0
	for line := range strings.SplitSeq(readText(t, "testdata/cniconfigs.txt"), "\n") {
		if heading, ok := strings.CutPrefix(line, "= "); ok {
			taken = heading
		}
		if line == "" || line[0] == '#' || line[0] == '=' {
			continue
		}
		seen++
		text := line
		if word, rest, _ := strings.Cut(line, " "); configForms[word] != "" {
			first, second, _ := strings.Cut(rest, " | ")
			text = strings.NewReplacer("$1", first, "$2", second).Replace(configForms[word])
		}
		bySchema, byPlugin := j.ask(t, text)
		testkit.Check(t, (bySchema == nil) == (taken == "both" || taken == "schema") &&
			(byPlugin == nil) == (taken == "both" || taken == "plugin"),
			"%s, which %s should take\nthe schema says %v\nthe plugin says %v", text, taken, bySchema, byPlugin)
	}
	testkit.Check(t, seen >= 150, "only %d configurations", seen)
	for _, mode := range podlink.Modes() {
		bySchema, byPlugin := j.ask(t, ours(`,"link":"`+mode.Name()+`"`))
		testkit.Check(t, (bySchema == nil) == (byPlugin == nil),
			"link %s: the schema says %v, the plugin %v", mode.Name(), bySchema, byPlugin)
	}
	n := install.Network{CNIVersion: "1.1.0", Name: "pods", Link: "veth",
		Subnets: []netip.Prefix{netip.MustParsePrefix(defaultSubnet)}}
	list := testkit.Must(n.Conflist())(t)
	bySchema, byPlugin := j.ask(t, string(list))
	testkit.Check(t, bySchema == nil && byPlugin == nil, "what install writes: %v, %v", bySchema, byPlugin)
	for _, bad := range []string{`{"name":"x","plugins":[]}`, `{"name":"x","plugins":[{"type":"bridge"}]}`,
		strings.Replace(string(list), `"veth"`, `"tap"`, 1)} {
		bySchema, _ := j.ask(t, bad)
		testkit.Check(t, bySchema != nil, "the schema takes %s", bad)
	}
}

// TestCNIDefaults compares the defaults in the schema with the defaults of the plugin.
func TestCNIDefaults(t *testing.T) {
	text := testkit.Must(os.ReadFile(cniSchema))(t)
	var schema struct {
		Defs struct {
			Plugin struct {
				Properties map[string]struct {
					Default json.RawMessage `json:"default"`
				} `json:"properties"`
			} `json:"plugin"`
		} `json:"$defs"`
	}
	testkit.Succeed(t, json.Unmarshal(text, &schema))
	var spelled strings.Builder
	for key, property := range schema.Defs.Plugin.Properties {
		if property.Default != nil {
			spelled.WriteString(`,"` + key + `":` + string(property.Default))
		}
	}
	testkit.Check(t, strings.Count(spelled.String(), ",") >= 6, "hardly any defaults: %s", &spelled)
	without := testkit.Must(netconf.Parse([]byte(ours(""))))(t)
	with := testkit.Must(netconf.Parse([]byte(ours(spelled.String()))))(t)
	exported := func(c netconf.Config) string {
		return string(testkit.Must(json.Marshal(c))(t))
	}
	diff := cmp.Diff(exported(without), exported(with))
	testkit.Check(t, diff == "", "without the defaults, and with them: %s", diff)
}

// TestCNIDocs holds the pages to the schema: both judges take the examples, and the reference names each key.
func TestCNIDocs(t *testing.T) {
	page := testkit.Must(os.ReadFile(cniReference))(t)
	j := newJudges(t)
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch([]byte(string(page)+readText(t, cniPage)), -1)
	testkit.Check(t, len(blocks) >= 5, "only %d examples", len(blocks))
	for _, block := range blocks {
		if bySchema, byPlugin := j.ask(t, string(block[1])); bySchema != nil || byPlugin != nil {
			t.Errorf("%s\nthe schema says %v\nthe plugin says %v", block[1], bySchema, byPlugin)
		}
	}
	text := testkit.Must(os.ReadFile(cniSchema))(t)
	keys := regexp.MustCompile(`"([A-Za-z]+)": \{`).FindAllSubmatch(text, -1)
	for _, key := range keys {
		switch string(key[1]) { // words of the schema itself
		case "properties", "items", "then", "else", "if", "dependentSchemas", "not", "contains", "plugin", "list", "plugins",
			"range", "device", "strings", "port", "bits", "address", "prefix", "route", "cni", "key", "value", "selected",
			"propertyNames", "additionalProperties", "labelName", "labelValue":
			continue
		}
		testkit.Check(t, bytes.Contains(page, []byte("`"+string(key[1])+"`")), "key %s is not on the page", key[1])
	}
	testkit.Check(t, len(keys) >= 40, "only %d keys", len(keys))
}

// TestCNIConformance compares the tests that test/promises/cni.md names with the existing tests.
func TestCNIConformance(t *testing.T) {
	page := testkit.Must(os.ReadFile("../../test/promises/cni.md"))(t)
	dirs := map[string]string{
		"main": ".", "cni": "../../internal/cni", "ipam": "../../internal/ipam", "install": "../../internal/cni/install",
		"netconf": "../../internal/cni/netconf", "server": "../../internal/cni/server", "record": "../../internal/cni/record",
		"podlink": "../../internal/podlink", "datapath": "../../internal/datapath",
		"clients": "../../test/clients", "deb": "../../test/deb",
	}
	named := regexp.MustCompile("`([a-z]+)[.](Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	for _, name := range named {
		files := testkit.Must(filepath.Glob(filepath.Join(dirs[name[1]], "*_test.go")))(t)
		found := slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && bytes.Contains(text, []byte("func "+name[2]+"(t *testing.T)"))
		})
		testkit.Check(t, found, "package %s has no test %s", name[1], name[2])
	}
	testkit.Check(t, len(named) >= 20, "only %d tests named", len(named))
}
