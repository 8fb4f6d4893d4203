// SPDX-License-Identifier: Apache-2.0

// Package netpolapi is a test program: the conformance tests of network-policy-api, on the cluster of KUBECONFIG. Its
// pods start it too, in place of agnhost: if the kernel lacks SCTP, it sends and answers SCTP's first packets itself.
package netpolapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/network-policy-api/conformance"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

var (
	image   = flag.String("image", "", "image of pods, which is on the nodes")
	agnhost = flag.String("agnhost", "", "agnhost, on the nodes")
	version = flag.String("version", api.GroupVersion.Version,
		"version of ClusterNetworkPolicy, with the fields of v1beta1")
	report = flag.String("report", "", "file to write, as ginkgo's report in JSON")
)

func TestMain(m *testing.M) {
	if os.Args[0] == replaced {
		if err := beAgnhost(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// must ends the test program where there is an error.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

const base = "/base/manifests.yaml" // the file of the suite's namespaces and pods

// spec is the part of ginkgo's report of a spec that readers of this program's report use.
type spec struct {
	LeafNodeType, LeafNodeText, State string
	NumAttempts                       int
}

// TestConformance prints a line for each test that -test.run matches, and writes the report.
func TestConformance(t *testing.T) {
	cfg := must(config.GetConfig())
	c := must(client.New(cfg, client.Options{}))
	group := schema.GroupVersion{Group: api.GroupName, Version: *version}
	c.Scheme().AddKnownTypes(group, &api.ClusterNetworkPolicy{}, &api.ClusterNetworkPolicyList{})
	metav1.AddToGroupVersion(c.Scheme(), group)
	// The suite reads manifests from its own files or via https.
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, manifest(r.URL.Path))
	}))
	defer server.Close()
	http.DefaultClient = server.Client()
	s := suite.New(suite.Options{
		Client: c, ClientSet: must(kubernetes.NewForConfig(cfg)), KubeConfig: *cfg, BaseManifests: server.URL + base,
		EnableAllSupportedFeatures: true,
	})
	s.Setup(t)
	start := time.Now()
	var specs []spec
	for _, test := range tests.ConformanceTests {
		for i, path := range test.Manifests {
			test.Manifests[i] = server.URL + "/" + path
		}
		result := spec{LeafNodeType: "It", LeafNodeText: test.ShortName, State: "failed", NumAttempts: 1}
		ran := false
		if t.Run(test.ShortName, func(t *testing.T) {
			ran = true
			test.Run(t, s)
		}) {
			result.State = "passed"
		}
		if ran {
			fmt.Println(result.State, test.ShortName)
			specs = append(specs, result)
		}
	}
	if !hasSCTP() {
		fmt.Println("kernel without SCTP: its connections were an INIT that an INIT ACK answers, by raw sockets")
	}
	data := must(json.Marshal([]map[string]any{{"RunTime": time.Since(start), "SpecReports": specs}}))
	must(0, os.WriteFile(*report, data, 0o644))
}

// manifest returns a manifest of the suite, with the version of policies. Its pods have an image that there is, in
// which this program takes the place of agnhost.
func manifest(path string) string {
	text := string(must(conformance.Manifests.ReadFile(strings.TrimPrefix(path, "/"))))
	if path != base {
		return strings.ReplaceAll(text, api.GroupVersion.String(), api.GroupName+"/"+*version)
	}
	for old, added := range map[string]string{
		"image: registry.k8s.io/e2e-test-images/agnhost:2.45\n": fmt.Sprintf(`image: %s
          volumeMounts: [{name: suite, mountPath: %s}, {name: agnhost, mountPath: %s}]
`, *image, replaced, original),
		"      containers:\n": fmt.Sprintf(
			`      volumes: [{name: suite, hostPath: {path: %q}}, {name: agnhost, hostPath: {path: %q}}]
      containers:
`, must(os.Executable()), *agnhost),
	} {
		if !strings.Contains(text, old) {
			panic("the suite's pods have no " + old)
		}
		text = strings.ReplaceAll(text, old, added)
	}
	return text
}

// Where pods have this program, and agnhost.
const (
	replaced = "/agnhost"
	original = "/agnhost.original"
)

func beAgnhost(args []string) error {
	line, timeout, dest := strings.Join(args, " "), "", ""
	connects, _ := fmt.Sscanf(line, "connect --timeout=%s --protocol=sctp %s", &timeout, &dest)
	switch {
	case !hasSCTP() && line == "porter":
		return answer()
	case !hasSCTP() && connects == 2:
		limit, err := time.ParseDuration(timeout)
		if err != nil {
			return err
		}
		return knock(dest, time.Now().Add(limit))
	}
	return syscall.Exec(original, append([]string{original}, args...), os.Environ())
}

// hasSCTP reports whether the kernel supports SCTP.
func hasSCTP() bool {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, syscall.IPPROTO_SCTP)
	return err == nil && syscall.Close(fd) == nil
}

// Chunks that set up an association, of RFC 9260.
const (
	chunkINIT    = 1
	chunkINITACK = 2
)

var order = binary.BigEndian

// packet is one with a chunk INIT, or INIT ACK, which answers a tag.
func packet(from, to uint16, tag uint32, kind byte) []byte {
	b := order.AppendUint32(order.AppendUint16(order.AppendUint16(nil, from), to), tag)
	b = append(b, 0, 0, 0, 0, kind, 0, 0, 28) // the checksum, and the length of the chunk
	b = order.AppendUint32(b, ownTag)
	b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1) // window, streams, first number
	b = append(b, 0, 7, 0, 8, 1, 2, 3, 4)             // a state cookie, which INIT does not need
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

var ownTag = rand.Uint32() | 1

func answer() error {
	var port uint16
	for _, value := range os.Environ() {
		_, _ = fmt.Sscanf(value, "SERVE_SCTP_PORT_%d", &port)
	}
	failed := make(chan error)
	for _, network := range []string{"ip4:132", "ip6:132"} {
		go func() {
			conn, err := net.ListenPacket(network, "")
			for b := make([]byte, 1500); err == nil; {
				var n int
				var from net.Addr
				n, from, err = conn.ReadFrom(b)
				if err == nil && n >= 20 && b[12] == chunkINIT && order.Uint16(b[2:]) == port {
					_, _ = conn.WriteTo(packet(port, order.Uint16(b), order.Uint32(b[16:]), chunkINITACK), from) // else it retries
				}
			}
			failed <- err
		}()
	}
	return <-failed
}

// knock sends INIT until it is answered.
func knock(dest string, end time.Time) error {
	to, err := net.ResolveUDPAddr("udp", dest)
	if err != nil {
		return err
	}
	conn, err := net.DialIP("ip:132", nil, &net.IPAddr{IP: to.IP})
	if err != nil {
		return err
	}
	own, b := uint16(32768+rand.IntN(28000)), make([]byte, 1500)
	for time.Now().Before(end) {
		_, err := conn.Write(packet(own, uint16(to.Port), 0, chunkINIT))
		if err := errors.Join(err, conn.SetReadDeadline(time.Now().Add(time.Second))); err != nil {
			return err
		}
		for n := 0; err == nil; {
			n, _, err = conn.ReadFromIP(b)
			if err == nil && n >= 20 && b[12] == chunkINITACK && order.Uint16(b[2:]) == own && order.Uint32(b[4:]) == ownTag {
				return nil
			}
		}
	}
	return errors.New("TIMEOUT")
}
