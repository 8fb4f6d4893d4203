// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzParseState parses state files of any content. What parses is written and parsed
// back the same, and its places are known ones.
func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"name":"x","topology":"pod-links","link":"veth","netfilter_call":false,"datapath":"ebpf","via":"ebpf-tc","standing":true,"created":"2025-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"name":"x","topology":"pod-to-network","link":"macvlan","parent":{"device":"eth1","host":"10.0.0.50/24","pod":"10.0.0.51/24"}}`))
	f.Add([]byte(`{"topology":"two-hosts","link":"host","wire_rate":18446744073709551615,"wire_delay":-1}`))
	f.Add([]byte(`{"disk":"../../x","parent":{"host":"10.0.0.50"}}`))
	f.Add([]byte("null"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := parseState(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(info)
		if err != nil {
			return // a year that JSON has no form for
		}
		again, err := parseState(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		again.Created, info.Created = again.Created.UTC(), info.Created.UTC()
		if !reflect.DeepEqual(info, again) {
			t.Errorf("%+v became %+v", info, again)
		}
		_, _ = info.withDefaults()
		for _, place := range (Store{}).Places(info) {
			for _, addr := range Addresses(info.Options, place) {
				_ = addr.String()
			}
		}
	})
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]uint64{"10gbit": 10e9, "1.5mbit": 15e5, "8kbit": 8000, "5bit": 5, "1Gbit": 1e9} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "gbit", "-1gbit", "0bit", "1e99gbit", "nangbit", "10gbyte", "100gbit"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q is parsed as %d", text, got)
		}
	}
}

// FuzzParseRate parses any text to a rate that a wire can count, or to an error.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"10gbit", "1.5mbit", "0x1p4bit", "infgbit", "1_0kbit", " 1bit", "-0bit", "34.3gbit"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if rate, err := ParseRate(text); err == nil && (rate < 1 || rate > 8<<32) {
			t.Errorf("%q is parsed as %d bit/s", text, rate)
		}
	})
}
