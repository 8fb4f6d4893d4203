// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/service"
)

// decoder decodes JSON objects into structs. It keeps the first error, and continues with later keys.
//
// The tags of a field: json is the key, want describes its type in errors, max is the limit of a list, and case:"any"
// accepts the key in any letter case. A struct without want is an object of its own, with its own unknown keys.
type decoder struct{ err error }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// object decodes the object at a path into the struct that into points to. It refuses keys that the struct lacks.
func (d *decoder) object(path string, data []byte, into any) {
	keys := d.keys(path, data)
	d.fields(path, keys, reflect.ValueOf(into).Elem())
	d.unknown(path, keys)
}

func (d *decoder) keys(path string, data []byte) (keys map[string]json.RawMessage) {
	if err := json.Unmarshal(data, &keys); err != nil || keys == nil {
		text := join(path, ": ", fmt.Sprintf("want a JSON object, got %s", excerpt(data)))
		d.fail(types.NewError(types.ErrDecodingFailure, text, ""))
	}
	return keys
}

func (d *decoder) unknown(path string, keys map[string]json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		text := fmt.Sprintf("unknown key %s: %s", join(path, ".", key), excerpt(keys[key]))
		d.fail(types.NewError(types.ErrUnsupportedField, text, ""))
	}
}

// fields decodes the keys of the fields of a struct, and deletes them from keys. null counts as absent.
func (d *decoder) fields(path string, keys map[string]json.RawMessage, into reflect.Value) {
	for i := range into.NumField() {
		field := into.Type().Field(i)
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			d.fields(path, keys, reflect.Indirect(into.Field(i)))
		}
		if key == "" || key == "-" {
			continue
		}
		name := key
		for other := range keys {
			if field.Tag.Get("case") == "any" && strings.EqualFold(other, key) {
				name = other
			}
		}
		raw := keys[name]
		delete(keys, name)
		if text := string(bytes.TrimSpace(raw)); text != "" && text != "null" {
			d.value(join(path, ".", key), raw, into.Field(i), field.Tag)
		}
	}
}

func (d *decoder) value(path string, raw json.RawMessage, into reflect.Value, tag reflect.StructTag) {
	want, kind := tag.Get("want"), into.Kind()
	limit, _ := strconv.Atoi(tag.Get("max"))
	if want == "" && kind == reflect.Struct {
		d.object(path, raw, into.Addr().Interface())
		return
	}
	var elements []json.RawMessage
	target, nested := into.Addr().Interface(), want == "" && kind == reflect.Slice
	if nested {
		target, want = &elements, "an array of objects"
	} else if want == "" {
		want = map[reflect.Kind]string{reflect.String: "a string", reflect.Bool: "true or false"}[kind]
	}
	if err := json.Unmarshal(raw, target); err != nil {
		d.fail(Invalidf("%s: want %s, got %s", path, want, excerpt(raw)))
		return
	}
	if n := reflect.ValueOf(target).Elem(); limit > 0 && n.Len() > limit {
		d.fail(Invalidf("%s: %d elements, want %d at most", path, n.Len(), limit))
		return
	}
	if nested {
		into.Set(reflect.MakeSlice(into.Type(), len(elements), len(elements)))
	}
	for i, element := range elements {
		d.value(fmt.Sprintf("%s[%d]", path, i), element, into.Index(i), tag)
	}
}

func join(path, separator, rest string) string {
	if path == "" {
		return rest
	}
	return path + separator + rest
}

func excerpt(raw []byte) string {
	const limit = 80
	text := string(bytes.Join(bytes.Fields(raw), []byte(" ")))
	var compact bytes.Buffer
	if json.Compact(&compact, raw) == nil {
		text = compact.String()
	}
	if len(text) > limit {
		return text[:limit] + "..."
	}
	return text
}

// document has the keys of a configuration. Some differ in form from their field of Config.
type document struct {
	*Config
	SourceGuard  string          `json:"sourceGuard"`
	Allowed      []string        `json:"allowedAddresses" want:"an array of addresses and prefixes" max:"16"`
	DefaultRoute bool            `json:"defaultRoute"`
	IPAM         json.RawMessage `json:"ipam" want:"an object"`
	Runtime      runtimeKeys     `json:"runtimeConfig"`
	Args         json.RawMessage `json:"args" want:"arguments"`
	// The plugin's type, and keys that the runtime evaluates.
	Type         json.RawMessage `json:"type" want:"a string"`
	Capabilities json.RawMessage `json:"capabilities" want:"an object"`
	Attachments  json.RawMessage `json:"cni.dev/attachments" want:"an array"`
}

type routeKeys struct {
	Dst      netip.Prefix `json:"dst" want:"a prefix like 10.9.0.0/16"`
	Via      netip.Addr   `json:"gw" want:"an address"`
	MTU      int          `json:"mtu" want:"a number of bytes"`
	AdvMSS   int          `json:"advmss" want:"a number of bytes"`
	Priority int          `json:"priority" want:"a number"`
}

// ipam decodes key ipam. Keys for another plugin are not validated.
func (d *decoder) ipam(raw json.RawMessage) (out IPAM) {
	if raw == nil {
		return out
	}
	var head struct {
		Type string `json:"type"`
	}
	var dhcp struct {
		Daemon string `json:"daemonSocketPath" want:"the path of a socket"`
	}
	var own struct {
		Sets   []ipam.RangeSet `json:"ranges" max:"256"`
		Routes []routeKeys     `json:"routes" max:"1024"`
	}
	keys := d.keys("ipam", raw)
	d.fields("ipam", keys, reflect.ValueOf(&head).Elem())
	out.Type = head.Type
	switch {
	case out.NeedsDevice():
		d.fields("ipam", keys, reflect.ValueOf(&dhcp).Elem())
		out.Daemon = cmp.Or(dhcp.Daemon, defaultDHCPDaemon)
	case out.BuiltIn():
		d.fields("ipam", keys, reflect.ValueOf(&own).Elem())
		d.unknown("ipam", keys)
		out.Sets = own.Sets
	}
	for _, r := range own.Routes {
		out.Routes = append(out.Routes, podlink.Route{Dst: r.Dst, Via: r.Via, MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority})
	}
	return out
}

// runtimeKeys has the keys of runtimeConfig. Runtimes pass only arguments of listed capabilities, so an unknown key is
// an error. Aliases are for other plugins. containerd encodes ports and bandwidths from Go structs without JSON names.
type runtimeKeys struct {
	IPs     []string        `json:"ips" want:"an array of addresses" max:"256"`
	MAC     string          `json:"mac" want:"a MAC address"`
	Aliases json.RawMessage `json:"aliases" want:"names"`
	Ports   []struct {
		Host      uint16     `json:"hostPort" want:"a port" case:"any"`
		Container uint16     `json:"containerPort" want:"a port" case:"any"`
		Protocol  string     `json:"protocol" want:"tcp or udp" case:"any"`
		HostIP    netip.Addr `json:"hostIP" want:"an address" case:"any"`
	} `json:"portMappings" max:"65535"`
	Bandwidth struct {
		ToPodRate    uint64 `json:"ingressRate" want:"bits per second" case:"any"`
		ToPodBurst   uint64 `json:"ingressBurst" want:"a number of bits" case:"any"`
		FromPodRate  uint64 `json:"egressRate" want:"bits per second" case:"any"`
		FromPodBurst uint64 `json:"egressBurst" want:"a number of bits" case:"any"`
	} `json:"bandwidth"`
}

func (k runtimeKeys) decode(d *decoder) (out Runtime) {
	b := k.Bandwidth
	out.Bandwidth.ToPod.Rate, out.Bandwidth.ToPod.Burst = b.ToPodRate, b.ToPodBurst
	out.Bandwidth.FromPod.Rate, out.Bandwidth.FromPod.Burst = b.FromPodRate, b.FromPodBurst
	for i, text := range k.IPs {
		addr, err := netip.ParseAddr(text)
		if prefix, prefixErr := netip.ParsePrefix(text); prefixErr == nil {
			addr, err = prefix.Addr(), nil
		}
		if err != nil {
			d.fail(Invalidf("runtimeConfig.ips[%d]: want an address, got %q", i, text))
		}
		out.IPs = append(out.IPs, addr.Unmap())
	}
	if k.MAC != "" {
		mac, err := net.ParseMAC(k.MAC)
		if err != nil || len(mac) != 6 {
			d.fail(Invalidf("runtimeConfig.mac: want a MAC address, got %q", k.MAC))
		}
		out.MAC = mac
	}
	for i, p := range k.Ports {
		port := Port{HostIP: p.HostIP.Unmap(), HostPort: p.Host, ContainerPort: p.Container}
		if port.HostIP.IsUnspecified() {
			port.HostIP = netip.Addr{}
		}
		key := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
		var err error
		port.Protocol, err = service.ParseProtocol(cmp.Or(p.Protocol, "tcp"))
		switch {
		case err != nil || port.Protocol != service.TCP && port.Protocol != service.UDP:
			d.fail(Invalidf("%s.protocol: want tcp or udp, got %q", key, p.Protocol))
		case port.HostPort == 0:
			d.fail(Invalidf("%s.hostPort: missing, or 0", key))
		case port.ContainerPort == 0:
			d.fail(Invalidf("%s.containerPort: missing, or 0", key))
		}
		out.Ports = append(out.Ports, port)
	}
	return out
}
