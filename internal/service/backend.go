// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Backend is one address and port that serves a service.
type Backend struct {
	Addr   netip.AddrPort
	State  State
	Weight uint16 // the share of new connections relative to the other backends; 0 counts as 1
	Local  bool   // on this node, which matters where a policy is Local
}

// Backends returns active backends of equal weight at the addresses.
func Backends(addrs ...netip.AddrPort) []Backend {
	backends := make([]Backend, len(addrs))
	for i, addr := range addrs {
		backends[i] = Backend{Addr: addr}
	}
	return backends
}

// Compare orders backends by state, so that backends that get new connections come first, then by node, this node
// first, then by address.
func (b Backend) Compare(o Backend) int {
	switch c := cmp.Compare(b.State, o.State); {
	case c != 0:
		return c
	case b.Local != o.Local && b.Local:
		return -1
	case b.Local != o.Local:
		return 1
	}
	return cmp.Or(b.Addr.Compare(o.Addr), cmp.Compare(b.Weight, o.Weight))
}

// equal treats weights 0 and 1 as equal.
func (b Backend) equal(o Backend) bool {
	return b.Addr == o.Addr && b.State == o.State && b.Local == o.Local && max(b.Weight, 1) == max(o.Weight, 1)
}

// String formats b: "10.1.0.1:80", and "10.1.0.1:80,draining,weight=2,local" if it differs from the default.
func (b Backend) String() string {
	text := b.Addr.String()
	if b.State != Active {
		text += "," + b.State.String()
	}
	if b.Weight > 1 {
		text += ",weight=" + strconv.Itoa(int(b.Weight))
	}
	if b.Local {
		text += "," + localWord
	}
	return text
}

const localWord = "local"

// MarshalText returns the text of String.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses the text of String, and validates the address.
func (b *Backend) UnmarshalText(text []byte) (err error) {
	fields := strings.Split(string(text), ",")
	*b = Backend{}
	if b.Addr, err = splitAddrPort(fields[0]); err == nil {
		err = validateBackend(b.Addr)
	}
	if err != nil {
		return fmt.Errorf("backend %q: %w", text, err)
	}
	seen := map[string]bool{}
	for _, field := range fields[1:] {
		kind, value, valued := strings.Cut(field, "=")
		switch {
		case kind == "weight" && valued:
			b.Weight, err = parseNumber(kind, value)
		case field == localWord:
			b.Local = true
		default:
			kind = "state"
			err = b.State.UnmarshalText([]byte(field))
		}
		if err == nil && seen[kind] {
			err = fmt.Errorf("more than one state or weight, or %q twice", localWord)
		}
		if err != nil {
			return fmt.Errorf("backend %q: %w", text, err)
		}
		seen[kind] = true
	}
	return nil
}

// ParseFrontend parses the address and port of a service: "10.96.0.100:5201" or "[fd00:96::100]:5201". It accepts an
// unspecified address, which only a node port may have.
func ParseFrontend(s string) (netip.AddrPort, error) {
	ap, err := splitAddrPort(s)
	if err == nil {
		err = validateFrontend(ap)
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("service %q: %w", s, err)
	}
	return ap, nil
}

// splitAddrPort splits by hand: the errors of netip.ParseAddrPort do not name the wrong half.
func splitAddrPort(s string) (ap netip.AddrPort, err error) {
	host, port, found := strings.Cut(s, ":")
	inner, bracketed := strings.CutPrefix(s, "[")
	if bracketed {
		if host, port, found = strings.Cut(inner, "]"); !found {
			return ap, errors.New("no closing bracket; want [ADDRESS]:PORT")
		}
		if port, found = strings.CutPrefix(port, ":"); !found {
			return ap, errors.New("no port; want [ADDRESS]:PORT")
		}
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case s == "":
		return ap, errors.New("empty; want ADDRESS:PORT")
	case !found:
		return ap, errors.New("no port; want ADDRESS:PORT")
	case !bracketed && strings.Contains(port, ":"):
		return ap, errors.New("an IPv6 address needs brackets; want [ADDRESS]:PORT")
	case err != nil:
		return ap, fmt.Errorf("invalid IP address %q", host)
	case addr.Is4() && bracketed:
		return ap, fmt.Errorf("brackets around the IPv4 address %s", host)
	case port == "":
		return ap, errors.New("no port after the colon")
	}
	number, err := parseNumber("port", port)
	return netip.AddrPortFrom(addr, number), err
}

// parseNumber parses a number in 1..65535 without a leading zero, which means octal elsewhere.
func parseNumber(noun, s string) (uint16, error) {
	number, err := strconv.ParseUint(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, fmt.Errorf("invalid %s %q", noun, s)
	case err == nil && number > 0 && s[0] == '0':
		return 0, fmt.Errorf("%s %q has a leading zero", noun, s)
	case err != nil || number == 0 || number > 65535:
		return 0, fmt.Errorf("%s %s is not in 1..65535", noun, s)
	}
	return uint16(number), nil
}

// validateFrontend is like validateAddrPort, but also accepts an unspecified address: all addresses of the node.
func validateFrontend(ap netip.AddrPort) error {
	if addr := ap.Addr(); addr.IsUnspecified() && addr.Zone() == "" && ap.Port() != 0 {
		return nil
	}
	return validateAddrPort(ap)
}

// validateBackend is like validateAddrPort, for a backend, which must be the same place for all clients.
func validateBackend(ap netip.AddrPort) error {
	if err := validateAddrPort(ap); err != nil {
		return err
	}
	if ap.Addr().IsLoopback() {
		return fmt.Errorf("%s is a loopback address, which never leaves a pod", ap.Addr())
	}
	return nil
}

// compatible has the IPv4-compatible addresses (RFC 4291, section 2.5.5.1), which the kernel does not route.
var compatible = netip.MustParsePrefix("::/96")

func validateAddrPort(ap netip.AddrPort) error {
	addr := ap.Addr()
	switch {
	case !addr.IsValid():
		return errors.New("no address")
	case addr.Zone() != "":
		return fmt.Errorf("zone %q is not supported", addr.Zone())
	case addr.Is4In6():
		return fmt.Errorf("write the IPv4 address as %s", addr.Unmap())
	case addr.IsUnspecified():
		return fmt.Errorf("%s is the unspecified address", addr)
	case addr.IsMulticast():
		return fmt.Errorf("%s is a multicast address", addr)
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is the broadcast address", addr)
	case addr.Is4() && addr.As4()[0] == 0:
		return fmt.Errorf("%s is in 0.0.0.0/8, which no host can have", addr)
	case addr.Is4() && addr.As4()[0] >= 240:
		return fmt.Errorf("%s is in 240.0.0.0/4, which is reserved", addr)
	case compatible.Contains(addr) && !addr.IsLoopback():
		return fmt.Errorf("%s is in %s, which no host can have", addr, compatible)
	case addr.IsLinkLocalUnicast():
		return fmt.Errorf("%s is a link-local address, which is ambiguous between pods", addr)
	case ap.Port() == 0:
		return errors.New("port 0 is not in 1..65535")
	}
	return nil
}
