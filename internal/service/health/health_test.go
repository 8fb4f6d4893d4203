// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

func freePort(t *testing.T) uint16 {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func balanced(frontend string, port uint16, backends ...string) service.Service {
	s := service.Service{
		Frontend: netip.MustParseAddrPort(frontend), Protocol: service.TCP, External: true, ExternalPolicy: service.Local,
		HealthCheckPort: port,
	}
	for _, text := range backends {
		var b service.Backend
		if err := b.UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
		s.Backends = append(s.Backends, b)
	}
	return s
}

// get returns the status, the number of backends by header and by body, and the service by the answer at a port.
func get(t *testing.T, host string, port uint16) (status int, weight string, local int, name string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp := testkit.Must(client.Get("http://" + net.JoinHostPort(host, fmt.Sprint(port)) + "/healthz"))(t)
	defer func() { _ = resp.Body.Close() }()
	body := testkit.Must(io.ReadAll(resp.Body))(t)
	var got struct {
		Service             struct{ Namespace, Name *string }
		LocalEndpoints      *int
		ServiceProxyHealthy bool
	}
	if err := json.Unmarshal(body, &got); err != nil || got.LocalEndpoints == nil || got.Service.Name == nil ||
		got.Service.Namespace == nil || !got.ServiceProxyHealthy {
		t.Fatalf("body %s: %v", body, err)
	}
	if h := resp.Header; h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("header %v", h)
	}
	return resp.StatusCode, resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), *got.LocalEndpoints, *got.Service.Name
}

// TestAnswers follows changes of services: only the addresses of active backends on this node count.
func TestAnswers(t *testing.T) {
	s := New(netip.MustParseAddr("127.0.0.1"))
	defer func() { _ = s.Close() }()
	port, second := freePort(t), freePort(t)
	for _, c := range []struct {
		services []service.Service
		status   int
		local    int
		name     string
	}{
		{[]service.Service{balanced("192.0.2.1:80", port)}, 503, 0, "192.0.2.1:80/tcp"},
		{[]service.Service{balanced("192.0.2.1:80", port, "10.1.0.1:80")}, 503, 0, "192.0.2.1:80/tcp"},
		{[]service.Service{balanced("192.0.2.1:80", port, "10.1.0.1:80,local")}, 200, 1, "192.0.2.1:80/tcp"},
		{[]service.Service{balanced("192.0.2.1:80", port, "10.1.0.1:80,local", "10.1.0.1:81,local", "10.1.0.2:80,local",
			"10.1.0.3:80")}, 200, 2, "192.0.2.1:80/tcp"},
		{[]service.Service{balanced("192.0.2.1:80", port, "10.1.0.1:80,local,terminating", "10.1.0.2:80,local,draining",
			"10.1.0.3:80,local,quarantined")}, 503, 0, "192.0.2.1:80/tcp"},
		{[]service.Service{balanced("192.0.2.1:81", port, "10.1.0.1:81"), balanced("192.0.2.1:80", port, "10.1.0.1:80,local"),
			balanced("192.0.2.2:80", second)},
			200, 1, "192.0.2.1:80/tcp, 192.0.2.1:81/tcp"},
	} {
		testkit.Succeed(t, s.Apply(c.services, nil))
		status, weight, local, name := get(t, "127.0.0.1", port)
		testkit.Check(t, status == c.status && weight == fmt.Sprint(c.local) && local == c.local && name == c.name,
			"%v: status %d, weight %s, %d backends of %q", c.services, status, weight, local, name)
	}
	status, _, _, name := get(t, "127.0.0.1", second)
	testkit.Check(t, status == 503 && name == "192.0.2.2:80/tcp", "the other port: status %d of %q", status, name)
}

// TestPorts listens only on the ports of services.
func TestPorts(t *testing.T) {
	s := New(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"))
	port := freePort(t)
	refused := func() {
		t.Helper()
		for _, host := range []string{"127.0.0.1", "::1"} {
			conn, err := net.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
			testkit.Check(t, errors.Is(err, syscall.ECONNREFUSED), "%s: %v, %v; want it refused", host, conn, err)
		}
	}
	with := []service.Service{balanced("192.0.2.1:80", port)}
	without := []service.Service{balanced("192.0.2.1:80", 0)}
	testkit.Succeed(t, s.Apply(without, nil))
	refused()
	testkit.Succeed(t, s.Apply(with, nil))
	get(t, "127.0.0.1", port)
	get(t, "::1", port)
	open := testkit.Must(net.Dial("tcp", net.JoinHostPort("::1", fmt.Sprint(port))))(t)
	defer func() { _ = open.Close() }()
	testkit.Succeed(t, s.Apply(without, nil))
	refused()
	_, err := open.Read(make([]byte, 1))
	testkit.Check(t, err != nil, "a connection outlives its port")
	testkit.Succeed(t, s.Apply(with, nil))
	testkit.Succeed(t, s.Close())
	refused()
}

// TestPortInUse names the port and its service in one line, answers the others, and takes the port when it is free.
func TestPortInUse(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	taken, free := uint16(l.Addr().(*net.TCPAddr).Port), freePort(t)
	s := New(netip.MustParseAddr("127.0.0.1"))
	defer func() { _ = s.Close() }()
	services := []service.Service{balanced("192.0.2.1:80", taken), balanced("192.0.2.2:80", free)}
	err := s.Apply(services, nil)
	want := fmt.Sprintf("health-check port %d of service 192.0.2.1:80/tcp: ", taken)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(fmt.Sprint(err), want) ||
		strings.Contains(fmt.Sprint(err), "\n") {
		t.Errorf("error %v", err)
	}
	get(t, "127.0.0.1", free)
	testkit.Succeed(t, l.Close())
	testkit.Succeed(t, s.Apply(services, nil))
	get(t, "127.0.0.1", taken)
}

// TestNames answers with the name that a cluster has for several frontends.
func TestNames(t *testing.T) {
	s := New(netip.MustParseAddr("127.0.0.1"))
	defer func() { _ = s.Close() }()
	port := freePort(t)
	services := []service.Service{balanced("192.0.2.1:80", port, "10.1.0.1:80,local"), balanced("192.0.2.1:81", port)}
	testkit.Succeed(t, s.Apply(services, func(service.Service) (namespace, name string) { return "shop", "web" }))
	resp := testkit.Must(http.Get(fmt.Sprintf("http://127.0.0.1:%d", port)))(t)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	want := `{"service": {"namespace": "shop", "name": "web"}, "localEndpoints": 1, "serviceProxyHealthy": true}`
	text := strings.Join(strings.Fields(string(body)), "")
	testkit.Check(t, err == nil && text == strings.ReplaceAll(want, " ", ""), "%s: %v", body, err)
}
