// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TestClientsThatDoNotRead has clients ask for much, again and again, and read nothing. Others get their metrics all the same.
func TestClientsThatDoNotRead(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"a", "b", "c"} {
		registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: strings.Repeat("much to read ", 100_000)}))
	}
	server := httptest.NewServer(Handler(registry, promhttp.HandlerOpts{DisableCompression: true}))
	defer server.Close()
	for range 2 * atOnce {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(2048)
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if status, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(status, "200") { // it has had its turn
			t.Fatalf("%q, %v", status, err)
		}
	}
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("status %s", answer.Status)
	}
}
