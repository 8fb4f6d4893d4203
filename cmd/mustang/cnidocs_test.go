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
	cniPage   = "../../docs/cni.md"
	cniSchema = "../../docs/cni.schema.json"
)

// judges are the two that have to agree on configurations.
type judges struct{ schema *jsonschema.Schema }

func newJudges(t *testing.T) judges {
	t.Helper()
	schema := testkit.Must(jsonschema.NewCompiler().Compile(cniSchema))(t)
	return judges{schema}
}

// ask judges a configuration, or a list by its first plugin.
func (j judges) ask(t *testing.T, text string) (bySchema, byPlugin error) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	config := []byte(text)
	if strings.Contains(text, `"plugins"`) {
		if config, err = install.PluginConfig(config); err != nil {
			return j.schema.Validate(value), err
		}
	}
	_, byPlugin = netconf.Parse(config)
	return j.schema.Validate(value), byPlugin
}

// ours is a configuration with addresses, and more keys.
func ours(more string) string {
	return `{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":[[{"subnet":"10.77.0.0/16"}]]}` + more +
		`}`
}

// routed is one with addresses of the host.
func routed(hosts, more string) string {
	return ours(`,"link":"macvlan","hostAddresses":[` + hosts + `]` + more)
}

// asking is one with a DHCP server, and more keys.
func asking(more string) string {
	return `{"name":"pods","type":"mustang-cni","ipam":{"type":"dhcp"}` + more + `}`
}

// ranged is one with given sets of ranges.
func ranged(sets string) string {
	return `{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":` + sets + `}}`
}

// withRoutes is one with routes, and more keys.
func withRoutes(routes, more string) string {
	return `{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":[[{"subnet":"10.77.0.0/16"}]],` +
		`"routes":[` + routes + `]}` + more + `}`
}

// chained is one that is chained, and more keys.
func chained(more string) string {
	return `{"name":"pods","type":"mustang-cni","chained":true` + more + `}`
}

// runtime is one with what a runtime asks for.
func runtimeConfig(text string) string { return ours(`,"runtimeConfig":{` + text + `}`) }

// goodConfigs are taken by both.
var goodConfigs = []string{
	ours(""), ours(`,"link":"auto","parent":"eth0","bridge":"br0","ovsdb":"/run/db.sock","mtu":65535,"services":"off",` +
		`"masquerade":true`),
	ours(`,"chained":false,"dns":{"nameservers":["10.96.0.10"],"domain":"x","search":["y"],"options":["z"]},` +
		`"args":{"any":[1]}`),
	ours(`,"capabilities":{"ips":true},"prevResult":{"any":1},"cni.dev/attachments":[1]`),
	ours(`,"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]`),
	ours(`,"bigTCP":"auto"`), ours(`,"bigTCP":"on"`), ours(`,"bigTCP":"off"`), chained(`,"bigTCP":"auto"`),
	ours(`,"mtu":0,"services":"tc"`), ours(`,"connections":0`), ours(`,"connections":1024`),
	ours(`,"connections":16777216`), ours(`,"services":"both","cniVersion":"1.1.0","parent":""`),
	ranged(`[[{"subnet":"fd00::/64","rangeStart":"fd00::9","rangeEnd":"fd00::ff","gateway":"fe80::1",` +
		`"exclude":["fd00::10/124"]}]]`),
	ranged(`[[{"subnet":"10.1.0.0/16"}],[{"subnet":"fd00::/64"}]]`),
	ranged(`[[{"subnet":"10.1.0.0/16","rangeEnd":"10.1.0.9"},{"subnet":"10.1.0.0/16","rangeStart":"10.1.1.1"}]]`),
	`{"name":"pods","type":"mustang-cni","ipam":{"type":"host-local","subnet":"10.0.0.0/8","whatever":[1]}}`,
	chained(""), chained(`,"services":"tc","link":"auto","masquerade":false,"ipam":{}`),
	chained(`,"services":"off","runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2}]}`),
	routed(`"10.77.0.2"`, ""), routed(`"10.77.255.254"`, `,"masquerade":false`),
	`{"name":"pods","type":"mustang-cni","link":"ovs-veth","hostAddresses":["fd00::2","10.0.0.2"],` +
		`"ipam":{"type":"static"}}`,
	ours(`,"policies":"auto","namespace":"shop","labels":{"app":"web","example.org/tier":"a_B.c","empty":""}`),
	ours(`,"policies":"on"`),
	ours(`,"policies":"off"`), ours(`,"policies":"agent","namespace":"shop"`), ours(`,"services":"off","policies":"off"`),
	chained(`,"namespace":"shop-1"`),
	ours(`,"args":{"cni":{"labels":[{"key":"app","value":"web"},{"key":"x"}],"ips":7}}`), ours(`,"args":{"cni":7}`),
	ours(`,"args":{"cni":{"labels":null}}`),
	asking(`,"link":"macvlan","hostAddresses":["10.0.0.2"]`),
	asking(`,"link":"bridge","hostAddresses":["fd00::2","10.0.0.2"]`),
	withRoutes("", ""), withRoutes(`{"dst":"0.0.0.0/0"}`, `,"defaultRoute":true`),
	withRoutes(`{"dst":"10.9.0.0/16","gw":"10.77.0.9"}`, `,"defaultRoute":false`),
	withRoutes(`{"dst":"10.9.0.0/16","mtu":1400,"advmss":1000,"priority":4294967295},{"dst":"10.9.0.0/16"}`, ""),
	chained(`,"defaultRoute":true`),
	`{"name":"pods","type":"mustang-cni","ipam":{"type":"static","routes":7},"defaultRoute":false}`,
	runtimeConfig(`"ips":["10.77.0.7","fd00::7/64"],"mac":"02:00:00:00:00:07","aliases":["a"]`),
	runtimeConfig(`"mac":"02-00-00-00-00-07"`), runtimeConfig(`"mac":"0200.0000.0007"`), runtimeConfig(""),
	runtimeConfig(`"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"UDP","hostIP":"::"},{"hostPort":1,` +
		`"containerPort":65535,"hostIP":""}]`),
	runtimeConfig(`"bandwidth":{"ingressRate":18446744073709551615,"ingressBurst":1,"egressRate":0,"egressBurst":4000}`),
}

// badConfigs are refused by both.
var badConfigs = []string{
	`[1]`, `"text"`, `null`, `{"name":"pods","type":"mustang-cni"}`, `{"name":"pods","type":"mustang-cni","ipam":{}}`,
	ours(`,"lnk":"veth"`), ours(`,"link":"tap"`), ours(`,"link":""`), ours(`,"link":5`), ours(`,"services":"all"`),
	ours(`,"mtu":-1`),
	ours(`,"mtu":65536`), ours(`,"mtu":1.5`), ours(`,"connections":1023`), ours(`,"connections":16777217`),
	ours(`,"connections":-1`),
	ours(`,"connections":"many"`), ours(`,"connections":5000000000`), ours(`,"connections":1024.5`), ours(`,"mtu":"big"`),
	ours(`,"masquerade":"yes"`), ours(`,"parent":"a/b"`), ours(`,"parent":7`),
	ours(`,"bridge":"a name of a bridge"`), ours(`,"bridge":"sixteen-letters-"`), ours(`,"ovsdb":"db.sock"`),
	ours(`,"chained":"no"`),
	ours(`,"bigTCP":"yes"`), ours(`,"bigTCP":true`), chained(`,"bigTCP":"on"`), chained(`,"bigTCP":"off"`),
	ours(`,"chained":true`), ours(`,"dns":{"nameservers":"10.96.0.10"}`), ours(`,"cni.dev/valid-attachments":{}`),
	ours(`,"runtimeConfig":[]`), chained(`,"link":"veth"`), chained(`,"masquerade":true`), chained(`,"services":"off"`),
	chained(`,"services":"off","runtimeConfig":{"portMappings":[]}`),
	ours(`,"hostAddresses":["10.77.0.2"]`), ours(`,"link":"veth","hostAddresses":["10.77.0.2"]`),
	ours(`,"link":"ipvlan-l3s","hostAddresses":["10.77.0.2"]`),
	routed(`"10.77.0.2"`, `,"masquerade":true`), routed("", ""), routed(`"10.77.0.2/16"`, ""),
	routed(`"10.77.0.2","fd00::2","10.77.0.3"`, ""), routed("7", ""),
	ours(`,"policies":"yes"`), ours(`,"policies":true`), ours(`,"namespace":"Shop"`), ours(`,"namespace":"-shop"`),
	ours(`,"namespace":7`),
	ours(`,"labels":["app"]`), ours(`,"labels":{"app":7}`), ours(`,"labels":{"":"x"}`), ours(`,"labels":{"a/b/c":"x"}`),
	ours(`,"labels":{"app":"-"}`), ours(`,"labels":{"/a":"x"}`),
	ours(`,"policies":"off","namespace":"shop"`), ours(`,"services":"off","policies":"on"`),
	ours(`,"services":"off","policies":"agent"`), ours(`,"services":"off","labels":{"app":"web"}`),
	ours(`,"args":{"cni":{"labels":{"app":"web"}}}`), ours(`,"args":{"cni":{"labels":[{"value":"web"}]}}`),
	ours(`,"args":{"cni":{"labels":[{"key":"app","value":"we b"}]}}`),
	asking(""), asking(`,"link":"macvlan"`), asking(`,"hostAddresses":["10.0.0.2"]`),
	asking(`,"link":"ipvlan-l2","hostAddresses":["10.0.0.2"]`),
	asking(`,"link":"ovs-veth","hostAddresses":["10.0.0.2"]`),
	asking(`,"link":"macvlan","hostAddresses":["10.0.0.2"],"masquerade":true`),
	chained(`,"hostAddresses":["10.77.0.2"]`), chained(`,"link":"macvlan","hostAddresses":["10.77.0.2"]`),
	`{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang"}}`,
	`{"name":"pods","type":"mustang-cni","ipam":{"type":7}}`,
	withRoutes(`7`, ""), withRoutes(`{}`, ""), withRoutes(`{"gw":"10.77.0.9"}`, ""), withRoutes(`{"dst":"10.9.0.0"}`, ""),
	withRoutes(`{"dst":"default"}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16","gw":"10.77.0.9/16"}`, ""), withRoutes(`{"dst":"10.9.0.0/16","via":"10.77.0.9"}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16","table":100}`, ""), withRoutes(`{"dst":"10.9.0.0/16","scope":253}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16","mtu":-1}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16","mtu":"1400"}`, ""), withRoutes(`{"dst":"10.9.0.0/16","advmss":65496}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16","priority":4294967296}`, ""),
	ours(`,"defaultRoute":"no"`), chained(`,"defaultRoute":false`),
	`{"name":"pods","type":"mustang-cni","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"}]],"routes":{}}}`,
	ranged(`[]`), ranged(`[[]]`), ranged(`[{"subnet":"10.0.0.0/8"}]`), ranged(`[[{}]]`),
	ranged(`[[{"subnet":"10.0.0.0"}]]`), ranged(`[[{"subnet":"x/8"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8","start":"10.0.0.9"}]]`), ranged(`[[{"subnet":"10.0.0.0/8","rangeStart":"here"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8","gateway":"10.0.0.1/8"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8","exclude":"10.1.0.0/16"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8"}],[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/16"}]]`),
	runtimeConfig(`"ips":["here"]`), runtimeConfig(`"ips":"10.77.0.7"`), runtimeConfig(`"mac":"here"`),
	runtimeConfig(`"mac":"02:00:00:00:00:00:00:07"`),
	runtimeConfig(`"infinibandGUID":"x"`), runtimeConfig(`"bandwidth":{"rate":1}`),
	runtimeConfig(`"bandwidth":{"egressRate":-1}`),
	runtimeConfig(`"portMappings":[{"hostPort":80}]`), runtimeConfig(`"portMappings":[{"hostPort":80,"containerPort":0}]`),
	runtimeConfig(`"portMappings":[{"hostPort":99999,"containerPort":1}]`),
	runtimeConfig(`"portMappings":[{"hostPort":80,"containerPort":1,"protocol":"sctp"}]`),
	runtimeConfig(`"portMappings":[{"hostPort":80,"containerPort":1,"hostIP":"x"}]`),
	runtimeConfig(`"portMappings":[{"hostPort":80,"containerPort":1,"name":"x"}]`),
}

// meaningless are refused by the plugin alone: a schema does not calculate.
var meaningless = []string{
	ranged(`[[{"subnet":"10.0.0.1/8"}]]`), ranged(`[[{"subnet":"10.0.0.0/33"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8","rangeStart":"11.0.0.9"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8"}],[{"subnet":"11.0.0.0/8"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8"},{"subnet":"11.0.0.0/8"}]]`),
	ranged(`[[{"subnet":"10.0.0.0/8","rangeStart":"10.0.0.9","rangeEnd":"10.0.0.8"}]]`),
	runtimeConfig(`"ips":["999.1.1.1"]`),
	withRoutes(`{"dst":"10.9.0.1/16"}`, ""), withRoutes(`{"dst":"fd00::/64"}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16"},{"dst":"10.9.0.0/16"}`, ""),
	withRoutes(`{"dst":"10.9.0.0/16","gw":"10.78.0.1"}`, ""), withRoutes(`{"dst":"10.9.0.0/16","gw":"10.77.0.9"}`,
		`,"link":"veth"`),
	withRoutes(`{"dst":"10.9.0.0/16","mtu":1500}`, `,"mtu":1400`), withRoutes(`{"dst":"0.0.0.0/0"}`,
		`,"defaultRoute":false`),
	asking(`,"link":"macvlan","hostAddresses":["fd00::2"]`),
	routed(`"10.77.0.1"`, ""), routed(`"10.78.0.2"`, ""), routed(`"10.77.0.2","10.77.0.3"`, ""),
	routed(`"::ffff:10.77.0.2"`, ""),
}

// tolerated are taken by the plugin alone, as the page says.
var tolerated = []string{
	ours(`,"link":null,"runtimeConfig":null`),
	runtimeConfig(`"portMappings":[{"HostPort":80,"ContainerPort":8080,"Protocol":"tcp","HostIP":""}]`),
	runtimeConfig(`"bandwidth":{"IngressRate":1000}`),
}

// TestCNISchema has the schema and the plugin judge the same configurations.
func TestCNISchema(t *testing.T) {
	j := newJudges(t)
	for i, configs := range [][]string{goodConfigs, badConfigs, meaningless, tolerated} {
		wantSchema, wantPlugin := i == 0 || i == 2, i == 0 || i == 3
		for _, text := range configs {
			bySchema, byPlugin := j.ask(t, text)
			if (bySchema == nil) != wantSchema || (byPlugin == nil) != wantPlugin {
				t.Errorf("%s\nthe schema (%v) says %v\nthe plugin (%v) says %v", text, wantSchema, bySchema, wantPlugin, byPlugin)
			}
		}
	}
	for _, mode := range podlink.Modes() {
		bySchema, byPlugin := j.ask(t, ours(`,"link":"`+mode.Name()+`"`))
		if (bySchema == nil) != (byPlugin == nil) {
			t.Errorf("link %s: the schema says %v, the plugin %v", mode.Name(), bySchema, byPlugin)
		}
	}
	n := install.Network{CNIVersion: "1.1.0", Name: "pods", Link: "veth",
		Subnets: []netip.Prefix{netip.MustParsePrefix(defaultSubnet)}}
	list := testkit.Must(n.Conflist())(t)
	if bySchema, byPlugin := j.ask(t, string(list)); bySchema != nil || byPlugin != nil {
		t.Errorf("what install writes: %v, %v", bySchema, byPlugin)
	}
	for _, bad := range []string{`{"name":"x","plugins":[]}`, `{"name":"x","plugins":[{"type":"bridge"}]}`,
		strings.Replace(string(list), `"veth"`, `"tap"`, 1)} {
		if bySchema, _ := j.ask(t, bad); bySchema == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

// TestCNIDefaults holds the defaults that the schema tells to those of the plugin.
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
	if strings.Count(spelled.String(), ",") < 6 {
		t.Errorf("hardly any defaults: %s", &spelled)
	}
	without := testkit.Must(netconf.Parse([]byte(ours(""))))(t)
	with := testkit.Must(netconf.Parse([]byte(ours(spelled.String()))))(t)
	exported := func(c netconf.Config) string {
		text := testkit.Must(json.Marshal(c))(t)
		return string(text)
	}
	if diff := cmp.Diff(exported(without), exported(with)); diff != "" {
		t.Errorf("without the defaults, and with them: %s", diff)
	}
}

// TestCNIDocs holds docs/cni.md to the schema: its examples are taken by both
// judges, and it has a row for each key.
func TestCNIDocs(t *testing.T) {
	page := testkit.Must(os.ReadFile(cniPage))(t)
	j := newJudges(t)
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) < 5 {
		t.Errorf("only %d examples", len(blocks))
	}
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
			"range", "device", "strings", "port", "bits",
			"address", "prefix", "route", "cni", "key", "value", "selected", "propertyNames", "additionalProperties",
			"labelName", "labelValue":
			continue
		}
		if !bytes.Contains(page, []byte("`"+string(key[1])+"`")) {
			t.Errorf("key %s is not on the page", key[1])
		}
	}
	if len(keys) < 40 {
		t.Errorf("only %d keys", len(keys))
	}
}

// TestCNIConformance holds the tests that docs/cni.md names to those that there are.
func TestCNIConformance(t *testing.T) {
	page := testkit.Must(os.ReadFile(cniPage))(t)
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
		if !found {
			t.Errorf("package %s has no test %s", name[1], name[2])
		}
	}
	if len(named) < 20 {
		t.Errorf("only %d tests named", len(named))
	}
}
