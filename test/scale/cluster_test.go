// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// programsVariable names the directory with etcd, kube-apiserver and kube-proxy.
const programsVariable = "MUSTANG_KUBERNETES"

const apiAddress = "10.197.0.1" // the API server's, on the segment of the nodes

// cluster is an API server with its store, in a namespace with a bridge that nodes are on.
type cluster struct {
	dir, programs string
	ns            *netns.Namespace
	kubeconfig    string
	client        *kubernetes.Clientset
}

func startCluster(b *testing.B) *cluster {
	b.Helper()
	testkit.RequireRoot(b)
	c := &cluster{dir: b.TempDir(), programs: os.Getenv(programsVariable), ns: testkit.Namespace(b, "api")}
	if c.programs == "" {
		built, err := filepath.Glob("/var/cache/mustang/k8s/*/kube-proxy")
		testkit.Require(b, err == nil && len(built) != 0,
			"no programs of Kubernetes: make k8s && build/k8s build, or name their directory in $%s", programsVariable)
		c.programs = filepath.Dir(built[0])
	}
	ip(b, strings.ReplaceAll(`
		-n API link set lo up
		-n API link add br0 type bridge
		-n API addr add `+apiAddress+`/16 dev br0
		-n API link set br0 up`, "API", c.ns.Name()))
	key := testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(b)
	der := testkit.Must(x509.MarshalPKCS8PrivateKey(key))(b)
	for name, data := range map[string][]byte{
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"tokens.csv": []byte("secret,admin,admin,\"system:masters\"\n"),
		"kubeconfig": []byte(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://` + apiAddress + `:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`),
	} {
		testkit.Succeed(b, os.WriteFile(c.path(name), data, 0o600))
	}
	c.kubeconfig = c.path("kubeconfig")
	c.start(b, c.ns, "etcd", "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--quota-backend-bytes=4294967296")
	c.start(b, c.ns, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--cert-dir="+c.path("apiserver"),
		"--advertise-address="+apiAddress, "--service-cluster-ip-range=10.96.0.0/12", "--token-auth-file="+
			c.path("tokens.csv"),
		"--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("sa.key"),
		"--service-account-signing-key-file="+c.path("sa.key"), "--max-requests-inflight=1000",
		"--max-mutating-requests-inflight=500")
	c.connect(b)
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// start starts one of Kubernetes' programs in a namespace, which ends with the benchmark.
func (c *cluster) start(b *testing.B, ns *netns.Namespace, name string, args ...string) *process {
	b.Helper()
	return startIn(b, ns, c.path(name+".log"), exec.Command(filepath.Join(c.programs, name), args...))
}

// connect waits until the API server is ready. The connections of the client begin in its namespace.
func (c *cluster) connect(b *testing.B) {
	b.Helper()
	config := testkit.Must(clientcmd.BuildConfigFromFlags("", c.kubeconfig))(b)
	config.QPS, config.Burst = 5000, 5000
	config.Dial = dialIn(c.ns)
	c.client = testkit.Must(kubernetes.NewForConfig(config))(b)
	testkit.Eventually(b, 10*time.Minute, func() error {
		var status int
		err := c.client.RESTClient().Get().AbsPath("/readyz").Do(b.Context()).StatusCode(&status).Error()
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("API server: status %d", status)
		}
		return err
	})
}

// process is a program that runs.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// startIn starts a program in a namespace. Its log stays in a file, which is shown if it ends by itself.
func startIn(b *testing.B, ns *netns.Namespace, log string, cmd *exec.Cmd) *process {
	b.Helper()
	out := testkit.Must(os.Create(log))(b)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	testkit.Succeed(b, ns.Do(cmd.Start))
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	b.Cleanup(p.stop)
	return p
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (p *process) check() error {
	select {
	case <-p.done:
		log, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), log[max(0, len(log)-2000):])
	default:
		return nil
	}
}

func ip(b *testing.B, script string) {
	b.Helper()
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		testkit.Require(b, err == nil, "ip %s: %v: %s", line, err, out)
	}
}
