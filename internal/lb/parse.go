// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// What addresses are of.
const (
	frontend = "service"
	backend  = "backend"
)

// ParseFrontend reads the address and port of a service: "10.96.0.100:5201" or "[fd00:96::100]:5201". The error names
// what is wrong and the text that it is wrong in.
func ParseFrontend(s string) (netip.AddrPort, error) {
	return parse(frontend, s)
}

// ParseAddrPort reads the address and port of a backend: "192.168.10.10:5201" or "[fd00:10::a]:5201". The error names
// what is wrong and the text that it is wrong in.
func ParseAddrPort(s string) (netip.AddrPort, error) {
	return parse(backend, s)
}

func parse(what, s string) (netip.AddrPort, error) {
	ap, err := addrPort(s)
	switch {
	case err != nil:
	case what == backend:
		err = validateBackend(ap)
	default:
		err = validate(ap)
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s %q: %w", what, s, err)
	}
	return ap, nil
}

// addrPort splits by hand, since the errors of netip.ParseAddrPort don't say which half is wrong.
func addrPort(s string) (netip.AddrPort, error) {
	colon := strings.LastIndexByte(s, ':')
	host, bracketed := strings.CutPrefix(s, "[")
	switch {
	case s == "":
		return netip.AddrPort{}, errors.New("empty; want ADDRESS:PORT")
	case bracketed:
		end := strings.IndexByte(host, ']')
		if end < 0 {
			return netip.AddrPort{}, errors.New("no closing bracket; want [ADDRESS]:PORT")
		}
		rest := host[end+1:]
		host = host[:end]
		if !strings.HasPrefix(rest, ":") {
			return netip.AddrPort{}, errors.New("no port; want [ADDRESS]:PORT")
		}
		return join(host, rest[1:], true)
	case colon < 0:
		return netip.AddrPort{}, errors.New("no port; want ADDRESS:PORT")
	case strings.Count(s, ":") > 1:
		return netip.AddrPort{}, errors.New("an IPv6 address needs brackets; want [ADDRESS]:PORT")
	}
	return join(s[:colon], s[colon+1:], false)
}

func join(host, port string, bracketed bool) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("%q is no IP address", host)
	case addr.Is4() && bracketed:
		return netip.AddrPort{}, fmt.Errorf("brackets around the IPv4 address %s", host)
	}
	number, err := strconv.ParseUint(port, 10, 64)
	switch {
	case port == "":
		return netip.AddrPort{}, errors.New("no port after the colon")
	case errors.Is(err, strconv.ErrSyntax):
		return netip.AddrPort{}, fmt.Errorf("port %q is no number", port)
	case err != nil || number > 65535:
		return netip.AddrPort{}, fmt.Errorf("port %s is not in 1..65535", port)
	}
	return netip.AddrPortFrom(addr, uint16(number)), nil
}

// validateBackend is validate for a backend, which must be one place for all who call it.
func validateBackend(ap netip.AddrPort) error {
	if err := validate(ap); err != nil {
		return err
	}
	if ap.Addr().IsLoopback() {
		return fmt.Errorf("%s is a loopback address, which never leaves a pod", ap.Addr())
	}
	return nil
}

// validate judges one address and port, of a service or a backend.
func validate(ap netip.AddrPort) error {
	addr := ap.Addr()
	switch {
	case !addr.IsValid():
		return errors.New("no address")
	case addr.Zone() != "":
		return fmt.Errorf("the zone %q cannot be served", addr.Zone())
	case addr.Is4In6():
		return fmt.Errorf("write the IPv4 address as %s", addr.Unmap())
	case addr.IsUnspecified():
		return fmt.Errorf("%s is the unspecified address", addr)
	case addr.IsMulticast():
		return fmt.Errorf("%s is a multicast address", addr)
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is the broadcast address", addr)
	case addr.IsLinkLocalUnicast():
		return fmt.Errorf("%s is a link-local address, which is not one place for all pods", addr)
	case ap.Port() == 0:
		return errors.New("port 0 is not in 1..65535")
	}
	return nil
}
