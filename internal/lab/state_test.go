// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestFindOfTwo says how to name one of several labs.
func TestFindOfTwo(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := os.Mkdir(s.labs(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(s.labs(), name+stateSuffix), []byte(`{"name":"`+name+`","standing":true}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Find(""); err == nil || !strings.Contains(err.Error(), "labs one, two: name one, as in lab exec --lab one, lab down one") {
		t.Errorf("error %v", err)
	}
}

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
		var info Info
		if err := json.Unmarshal(data, &info); err != nil {
			return
		}
		text, err := json.Marshal(info)
		if err != nil {
			return // a year that JSON has no form for
		}
		var again Info
		if err := json.Unmarshal(text, &again); err != nil {
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
