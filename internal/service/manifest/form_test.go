// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

const schemaPath = "../../../docs/services.schema.json"

func every() []service.Service {
	at := netip.MustParseAddrPort
	backends := []service.Backend{{Addr: at("10.1.0.1:80")}, {Addr: at("10.1.0.2:80"), State: service.Draining, Weight: 3}}
	return []service.Service{
		{Frontend: at("10.96.0.1:80"), Backends: backends, Choice: service.Maglev, OnRemove: service.Reset},
		{Frontend: at("10.96.0.2:80"), Protocol: service.TCP, Backends: backends, Affinity: 3 * time.Hour,
			InternalPolicy: service.Local},
		{Frontend: at("10.96.0.2:80"), Protocol: service.UDP, Backends: backends[:1]},
		{Frontend: at("10.96.0.3:80"), Protocol: service.SCTP, Backends: backends[:1]},
		{Frontend: at("192.0.2.1:80"), Protocol: service.TCP, External: true, DSR: service.IPIP,
			ExternalPolicy: service.Local, HealthCheckPort: 31000,
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")}},
		{Frontend: at("0.0.0.0:30000"), Protocol: service.TCP, NodePort: true, Backends: backends},
		{Frontend: at("[::]:30000"), Protocol: service.TCP, NodePort: true, Backends: service.Backends(at("[fd00::1]:80"))},
	}
}

func compile(t testing.TB) *jsonschema.Schema {
	t.Helper()
	schema := testkit.Must(jsonschema.NewCompiler().Compile(schemaPath))(t)
	return schema
}

// asJSON returns the values of a YAML document as package jsonschema has them.
func asJSON(t testing.TB, text string) any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	data, err := json.Marshal(value)
	testkit.Require(t, err == nil, "%v: %s", err, text)
	value = testkit.Must(jsonschema.UnmarshalJSON(bytes.NewReader(data)))(t)
	return value
}

// TestRoundTrip writes services, which read the same again, and fit the schema.
func TestRoundTrip(t *testing.T) {
	schema := compile(t)
	for name, write := range map[string]func(*bytes.Buffer, []service.Service) error{
		"yaml": func(b *bytes.Buffer, s []service.Service) error { return WriteYAML(b, s) },
		"json": func(b *bytes.Buffer, s []service.Service) error { return WriteJSON(b, s) },
	} {
		for _, want := range [][]service.Service{every(), nil} {
			var out, again bytes.Buffer
			testkit.Succeed(t, write(&out, want))
			text := out.String()
			got, err := Read(&out, Options{})
			testkit.Require(t, err == nil && len(got.Notes) == 0, "%s: %v, notes %q:\n%s", name, err, got.Notes, text)
			if c := service.Diff(got.Services, want); c.Unchanged != len(want) || len(got.Services) != len(want) {
				t.Errorf("%s: read %+v, want %+v", name, got.Services, want)
			}
			slices.Reverse(got.Services)
			if err := write(&again, got.Services); err != nil || again.String() != text {
				t.Errorf("%s: written again: %v\n%s\n%s", name, err, text, again.String())
			}
			err = schema.Validate(asJSON(t, text))
			testkit.Check(t, err == nil, "%s: %v", name, err)
		}
	}
}

// TestSchemaHasTheFields of Entry, no more and no less.
func TestSchemaHasTheFields(t *testing.T) {
	data := testkit.Must(os.ReadFile(schemaPath))(t)
	var schema struct {
		Defs struct {
			Service struct{ Properties map[string]any }
		} `json:"$defs"`
	}
	testkit.Succeed(t, json.Unmarshal(data, &schema))
	entry := reflect.TypeFor[Entry]()
	for i := range entry.NumField() {
		name, _, _ := strings.Cut(entry.Field(i).Tag.Get("json"), ",")
		other, _, _ := strings.Cut(entry.Field(i).Tag.Get("yaml"), ",")
		if _, ok := schema.Defs.Service.Properties[name]; !ok || name != other {
			t.Errorf("field %s: %q in the schema, %q in YAML", entry.Field(i).Name, name, other)
		}
		delete(schema.Defs.Service.Properties, name)
	}
	for name := range schema.Defs.Service.Properties {
		t.Errorf("the schema's %s is no field", name)
	}
}

func one(more string) string {
	return `{"schema": 1, "services": [{"service": "10.96.0.1:80", "backends": ["10.1.0.1:80"]` + more + `}]}`
}

// badForm is documents that are refused, and by the schema too where it can.
var badForm = []struct {
	text, want string
	schemaToo  bool
}{
	{"", "it is empty", false},
	{"--- \n---\n", "it is empty", false},
	{"[]", "document 1: want an object, got a list", true},
	{"x", "document 1: want an object, got a string", true},
	{"{}", "document 1: schema: missing: want 1", true},
	{`{"schema": 2, "services": []}`, "document 1: schema: unknown schema 2: want 1", true},
	{`{"schema": 1}`, "document 1: services: missing", true},
	{`{"schema": 1, "services": [], "more": 1}`, "document 1: more: unknown field", true},
	{`{"schema": 1, "services": [], "services": []}`, "services: duplicate", false},
	{`{"schema": 1, "services": [`, "document 1: services", false},
	{"schema: 1\nservices: [", "document 1: yaml: ", false},
	{"schema: 1\nschema: 1\nservices: []", "is there already", false},
	{"schema: 1\nservices: []\n---\nschema: 1\nservices: 7", "document 2: services: want a list, got a number", true},
	{`{"schema": 1, "services": [{"backends": []}]}`, "services[0] : service: missing", true},
	{`{"schema": 1, "services": [{"service": "10.96.0.1:80"}]}`, "services[0] 10.96.0.1:80: backends: missing", true},
	{`{"schema": 1, "services": [{"service": "10.96.0.1:80", "backends": null}]}`, "services[0].backends: null", true},
	{`{"schema": 1, "services": [{"service": "10.96.0.1:080", "backends": []}]}`, `port "080" has a leading zero`, true},
	{`{"schema": 1, "services": [{"service": "0.0.0.0:80", "backends": []}]}`, "which only a node port may have", false},
	{`{"schema": 1, "services": [{"service": "240.0.0.1:80", "backends": []}]}`, "240.0.0.1 is in 240.0.0.0/4", false},
	{`{"schema": 1, "services": [{"service": "10.96.0.1:80", "backends": ["10.1.0.1:80,gone"]}]}`,
		`backends[0]: backend "10.1.0.1:80,gone": unknown state "gone"`, true},
	{`{"schema": 1, "services": [{"service": "10.96.0.1:80", "backends": ["10.1.0.1:80,weight=0"]}]}`,
		`weight 0 is not in 1..65535`, true},
	{one(`, "Choice": "maglev"`), "Choice: unknown field", true},
	{one(`, "choice": "best"`), `choice: unknown choice "best"`, true},
	{one(`, "protocol": "TCP"`), `protocol: write "TCP" as "tcp"`, true},
	{one(`, "protocol": ""`), `invalid protocol ""`, true},
	{one(`, "protocol": "icmp"`), `invalid protocol "icmp"`, true},
	{one(`, "affinitySeconds": -1`), "affinitySeconds: ", true},
	{one(`, "affinitySeconds": 1.5`), "affinitySeconds: ", true},
	{one(`, "affinitySeconds": 86401`), "affinity 24h0m1s", true},
	{one(`, "healthCheckPort": 65536`), "healthCheckPort: value out of range", true},
	{one(`, "healthCheckPort": 80`), "health-check port 80 needs the external policy local", true},
	{one(`, "nodePort": true, "external": true`), "not both", true},
	{one(`, "nodePort": "yes"`), "nodePort: want a boolean, got a string", true},
	{one(`, "sourceRanges": ["10.0.0.1"]`), "sourceRanges[0]", true},
	{one(`, "sourceRanges": ["10.0.0.1/8"]`), "has host bits", false},
	{one(`, "external": true, "externalPolicy": "local", "healthCheckPort": 30000}, {"service": "0.0.0.0:30000", ` +
		`"nodePort": true, "backends": []`), "health-check port 30000 is the node port of service 0.0.0.0:30000/any", false},
	{one(`}, {"service": "10.96.0.1:80", "protocol": "udp", "backends": []`),
		"services[1] 10.96.0.1:80: frontend 10.96.0.1:80/udp also belongs to document 1: services[0] 10.96.0.1:80", false},
}

func TestBadForm(t *testing.T) {
	schema := compile(t)
	for _, c := range badForm {
		_, err := Read(strings.NewReader(c.text), Options{})
		testkit.Check(t, err != nil && strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"),
			"%s: error %v, want %q", c.text, err, c.want)
		last := c.text[strings.LastIndex(c.text, "---\n")+1:]
		testkit.Check(t, !c.schemaToo || schema.Validate(asJSON(t, strings.TrimPrefix(last, "--\n"))) != nil,
			"%s: the schema takes it", c.text)
	}
}

// FuzzRead reads anything. Accepted services are valid, and stay the same when they are written and read again. The
// schema also accepts a single document of our own form. Errors are one line.
func FuzzRead(f *testing.F) {
	schema := compile(f)
	for _, c := range badForm {
		f.Add(c.text)
	}
	f.Add(one(""))
	f.Add(kubernetes)
	f.Add("a: &a [*a]")
	f.Add("schema: 1\nservices:\n- &x {service: '[fd00::1]:80', protocol: udp, backends: []}\n- {<<: *x, protocol: tcp}")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Read(strings.NewReader(text), Options{Node: "a", Zone: "b"})
		if err != nil {
			testkit.Require(t, !strings.ContainsAny(err.Error(), "\n\r") && err.Error() != "", "%q: error %q", text, err)
			return
		}
		if err := service.ValidateSet(set.Services); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var out bytes.Buffer
		testkit.Succeed(t, WriteYAML(&out, set.Services))
		again, err := Read(&out, Options{})
		if c := service.Diff(again.Services, set.Services); err != nil || c.Unchanged != len(set.Services) {
			t.Fatalf("%q: written and read again: %+v, %v", text, again, err)
		}
		var document map[string]any
		if yaml.NewDecoder(strings.NewReader(text)).Decode(&document) == nil && document["schema"] != nil &&
			document["kind"] == nil {
			err := schema.Validate(asJSON(t, text))
			testkit.Require(t, err == nil, "%q: %v", text, err)
		}
	})
}
