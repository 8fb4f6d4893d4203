// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"mustang/internal/document"
	"mustang/internal/service"
)

const schema = 1 // the version of our own form

type form struct {
	Schema   int     `json:"schema" yaml:"schema"`
	Services []Entry `json:"services" yaml:"services"`
}

// Entry is a service in our own form. Service is the frontend: address and port.
type Entry struct {
	Service         string            `json:"service" yaml:"service"`
	Protocol        string            `json:"protocol" yaml:"protocol"`
	Backends        []service.Backend `json:"backends" yaml:"backends"`
	Choice          service.Choice    `json:"choice,omitzero" yaml:"choice,omitempty"`
	AffinitySeconds uint32            `json:"affinitySeconds,omitzero" yaml:"affinitySeconds,omitempty"`
	InternalPolicy  service.Policy    `json:"internalPolicy,omitzero" yaml:"internalPolicy,omitempty"`
	ExternalPolicy  service.Policy    `json:"externalPolicy,omitzero" yaml:"externalPolicy,omitempty"`
	NodePort        bool              `json:"nodePort,omitzero" yaml:"nodePort,omitempty"`
	External        bool              `json:"external,omitzero" yaml:"external,omitempty"`
	DSR             service.DSR       `json:"dsr,omitzero" yaml:"dsr,omitempty"`
	SourceRanges    []netip.Prefix    `json:"sourceRanges,omitempty" yaml:"sourceRanges,omitempty"`
	HealthCheckPort uint16            `json:"healthCheckPort,omitzero" yaml:"healthCheckPort,omitempty"`
	OnRemove        service.OnRemove  `json:"onRemove,omitzero" yaml:"onRemove,omitempty"`
}

// NewEntry returns the entry of a service.
func NewEntry(s service.Service) Entry {
	s = s.Sorted()
	if s.Backends == nil {
		s.Backends = []service.Backend{}
	}
	return Entry{
		Service: s.Frontend.String(), Protocol: s.Protocol.String(), Backends: s.Backends, Choice: s.Choice,
		AffinitySeconds: uint32(s.Affinity / time.Second), InternalPolicy: s.InternalPolicy, ExternalPolicy: s.ExternalPolicy,
		NodePort: s.NodePort, External: s.External, SourceRanges: s.SourceRanges, HealthCheckPort: s.HealthCheckPort,
		OnRemove: s.OnRemove, DSR: s.DSR,
	}
}

func (e Entry) service() (s service.Service, err error) {
	switch {
	case e.Service == "":
		return s, errors.New("service: missing")
	case e.Backends == nil:
		return s, errors.New("backends: missing: [] refuses all clients")
	}
	s = service.Service{
		Backends: e.Backends, Choice: e.Choice, Affinity: time.Duration(e.AffinitySeconds) * time.Second,
		InternalPolicy: e.InternalPolicy, ExternalPolicy: e.ExternalPolicy, NodePort: e.NodePort, External: e.External,
		SourceRanges: e.SourceRanges, HealthCheckPort: e.HealthCheckPort, OnRemove: e.OnRemove, DSR: e.DSR,
	}
	if s.Frontend, err = service.ParseFrontend(e.Service); err != nil {
		return s, err
	}
	if s.Protocol, err = service.ParseProtocol(e.Protocol); err == nil && s.Protocol.String() != e.Protocol {
		err = fmt.Errorf("protocol: write %q as %q", e.Protocol, s.Protocol)
	}
	return s, err
}

func (s *set) addOwn(where string, data jsontext.Value) error {
	var own struct {
		Schema   *int             `json:"schema"`
		Services []jsontext.Value `json:"services"`
	}
	err := refuseNull(data)
	if err == nil {
		err = document.Decode(data, &own, json.RejectUnknownMembers(true))
	}
	switch {
	case err != nil:
	case own.Schema == nil:
		err = fmt.Errorf("schema: missing: want %d", schema)
	case *own.Schema != schema:
		err = fmt.Errorf("schema: unknown schema %d: want %d", *own.Schema, schema)
	case own.Services == nil:
		err = errors.New("services: missing")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	s.own = true
	for i, data := range own.Services {
		var named struct{ Service string }
		_ = json.Unmarshal(data, &named, json.MatchCaseInsensitiveNames(true)) // as far as it parses, for the message
		where := fmt.Sprintf("%s: services[%d] %s", where, i, named.Service)
		e := Entry{Protocol: service.Any.String()}
		err := document.Decode(data, &e, json.RejectUnknownMembers(true))
		var v service.Service
		if err == nil {
			v, err = e.service()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if err := s.put(where, v); err != nil {
			return err
		}
	}
	return nil
}

func refuseNull(data jsontext.Value) error {
	decoder := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		token, err := decoder.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return document.Explain(err)
		case token.Kind() == 'n':
			return fmt.Errorf("%s: null: leave the field out", document.Field(decoder.StackPointer()))
		}
	}
}

// WriteJSON writes services in our own form, by frontend and protocol.
func WriteJSON(w io.Writer, services []service.Service) error {
	if err := json.MarshalWrite(w, newForm(services), jsontext.WithIndent("  ")); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// WriteYAML writes services in our own form, by frontend and protocol.
func WriteYAML(w io.Writer, services []service.Service) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	return cmp.Or(encoder.Encode(newForm(services)), encoder.Close())
}

func newForm(services []service.Service) form {
	f := form{Schema: schema, Services: make([]Entry, 0, len(services))}
	for _, s := range sorted(services) {
		f.Services = append(f.Services, NewEntry(s))
	}
	return f
}

// WriteDiff writes changes for people: a line with +, - or ~ for each service, then its changed fields and backends.
func WriteDiff(w io.Writer, c service.Changes) error {
	out := bufio.NewWriter(w)
	for _, s := range sorted(c.Delete) {
		fmt.Fprintf(out, "- %s\n", s)
	}
	for _, u := range c.Update {
		fmt.Fprintf(out, "~ %s\n", u.Want)
		fields, err := fieldChanges(NewEntry(u.Have), NewEntry(u.Want))
		if err != nil {
			return err
		}
		for _, line := range slices.Concat(fields, backendChanges(u.Have.Backends, u.Want.Backends)) {
			fmt.Fprintf(out, "    %s\n", line)
		}
	}
	for _, s := range sorted(c.Add) {
		fmt.Fprintf(out, "+ %s\n", s)
		for _, line := range backendChanges(nil, s.Backends) {
			fmt.Fprintf(out, "    %s\n", line)
		}
	}
	return out.Flush()
}

func fieldChanges(have, want Entry) (lines []string, err error) {
	var fields [2]map[string]jsontext.Value
	for i, e := range []Entry{have, want} {
		e.Backends = nil
		data, err := json.Marshal(e)
		if err == nil {
			err = json.Unmarshal(data, &fields[i])
		}
		if err != nil {
			return nil, err
		}
	}
	all := maps.Clone(fields[0])
	maps.Copy(all, fields[1])
	for _, name := range slices.Sorted(maps.Keys(all)) {
		old, fresh := cmp.Or(string(fields[0][name]), "default"), cmp.Or(string(fields[1][name]), "default")
		if old != fresh {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", name, old, fresh))
		}
	}
	return lines, nil
}

// backendChanges returns a line for each removed or added backend. Another state or weight counts as both.
func backendChanges(have, want []service.Backend) []string {
	removed, added := map[string]bool{}, map[string]bool{}
	for _, b := range have {
		removed["- backend "+b.String()] = true
	}
	for _, b := range want {
		if text := b.String(); removed["- backend "+text] {
			delete(removed, "- backend "+text)
		} else {
			added["+ backend "+text] = true
		}
	}
	return append(slices.Sorted(maps.Keys(removed)), slices.Sorted(maps.Keys(added))...)
}
