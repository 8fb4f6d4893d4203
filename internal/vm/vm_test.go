// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	if directory := os.Getenv(abandonVariable); directory != "" {
		os.Exit(abandon(directory))
	}
	if os.Getenv(loopVariable) != "" {
		loop()
		return
	}
	os.Exit(func() int {
		flag.Parse()
		// Emulated machines take all of a CPU each.
		if err := flag.Set("test.parallel", strconv.Itoa(runtime.NumCPU())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		dir, err := os.MkdirTemp("", "mustang-vm-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		built.dir, built.paths = dir, map[string]string{}
		return checkLeft(m)
	}())
}

// built is the programs of guests by arguments of go build.
var built struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

// buildOnce builds a program for guests, unless another test has done so.
func buildOnce(t *testing.T, args ...string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	key := strings.Join(args, " ")
	if path, ok := built.paths[key]; ok {
		return path
	}
	path := filepath.Join(built.dir, fmt.Sprint(len(built.paths)))
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", path}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	testkit.Require(t, err == nil, "go build: %v: %s", err, out)
	built.paths[key] = path
	return path
}

// loopVariable makes the test's executable a program that does a fixed amount of work.
const loopVariable = "MUSTANG_TEST_VM_LOOP"

// iterations is the length of a loop.
const iterations = 5_000_000

// loop prints the number of CPUs and how long each of some loops takes, in microseconds, before all other work of the
// guest.
func loop() {
	runtime.LockOSThread()
	first := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &first, 0); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(runtime.NumCPU())
	for range loops {
		begin := time.Now()
		if spin(iterations) == 0 {
			fmt.Println("zero")
		}
		fmt.Println(time.Since(begin).Microseconds())
	}
}

const loops = 5

//go:noinline
func spin(n int) uint64 {
	x := uint64(1)
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// checkLeft runs the tests, and fails if a guest's process or one of its files is left after them.
func checkLeft(m *testing.M) (exitCode int) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	pids, childErr := children(os.Getpid())
	left, err := os.ReadDir("/proc/self/fd")
	// some of Go's own are opened with the first use of a pipe, and one to see these
	const own = 4
	if err := errors.Join(err, childErr); err != nil || len(pids) > 0 || len(left) > len(files)+own {
		fmt.Fprintf(os.Stderr, "left after all guests: processes %v, %d open files more, %v\n", pids,
			len(left)-len(files), err)
		return 1
	}
	return code
}

var fetchOnce = sync.OnceValues(func() (Kernel, error) { return FetchKernel(context.Background(), "") })

func guestOptions(t *testing.T, command ...string) (o Options, stdout, stderr *bytes.Buffer) {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "qemu-system-x86_64")
	kernel := testkit.Must(fetchOnce())(t)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return Options{
		Kernel: kernel, Init: buildOnce(t, "mustang/test/vm"), Command: command, MemoryMB: 512, Timeout: 10 * time.Minute,
		Stdout: stdout, Stderr: stderr,
	}, stdout, stderr
}

// TestRun runs one command that uses everything that a guest offers, in a directory on a file system below the root. It
// writes more than any buffer holds, and ends at once.
func TestRun(t *testing.T) {
	t.Parallel()
	const script = `
set -e
echo out; echo err >&2
echo "release $(uname -r) user $(id -u) dir $PWD variable $VARIABLE"
echo lost > "$LOST"; cat "$LOST"
echo kept > "$KEPT/file"
modprobe ipvlan
ip tuntap add tap0 mode tap # opens /dev/net/tun, which loads a module
cat /proc/self/mounts > "$KEPT/mounts"
cat /sys/class/net/lo/flags > "$KEPT/lo"
ls -d /sys/fs/cgroup/cgroup.procs /sys/fs/bpf /sys/kernel/tracing/trace > /dev/null
dmesg | sed -n 's/.*tsc: Detected \([0-9.]*\) MHz.*/\1/p' > "$KEPT/tsc"
# who is root in the guest can mount the host's root once more, and writable
mkdir /again; mount -t virtiofs root /again; mount -o remount,rw /again
if touch "/again/lost" 2> "$KEPT/refused"; then echo "written to the host"; fi
sleep 1000 & # is ended with the command
head -c 3M /dev/zero; head -c 3M /dev/zero >&2
kill -KILL $$`
	kept := t.TempDir()
	testkit.RequireTool(t, "ip")
	o, stdout, stderr := guestOptions(t, "bash", "-c", script)
	dir := otherFileSystem(t)
	lost := filepath.Join(dir, "lost")
	o.Dir, o.Share, o.Modules = dir, kept, []string{"br_netfilter"}
	o.Env = []string{"PATH=" + os.Getenv("PATH"), "VARIABLE=a b", "LOST=" + lost, "KEPT=" + kept}
	code := testkit.Must(Run(t.Context(), o))(t)
	want := "out\nrelease " + o.Kernel.Release + " user 0 dir " + dir + " variable a b\nlost\n"
	zeros := strings.Repeat("\x00", 3<<20)
	if code != 137 || stdout.String() != want+zeros || stderr.String() != "err\n"+zeros {
		t.Errorf("exit code %d, %d bytes of stdout %.400q, %d of stderr %.400q; want 137, %q, err", code, stdout.Len(),
			stdout, stderr.Len(), stderr, want)
	}
	_, err := os.Stat(lost)
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "file written in the guest, on the host: %v", err)
	for name, part := range map[string]string{
		"file": "kept\n", "refused": "Read-only file system", "lo": "0x9\n", "mounts": " / overlay ",
	} {
		if data, err := os.ReadFile(filepath.Join(kept, name)); err != nil || !strings.Contains(string(data), part) {
			t.Errorf("shared file %s: %q, %v; want %q in it", name, data, err, part)
		}
	}
	checkRate(t, filepath.Join(kept, "tsc"))
}

// checkRate checks that the guest's kernel has the rate of its clock.
func checkRate(t *testing.T, file string) {
	t.Helper()
	text := testkit.Must(os.ReadFile(file))(t)
	var found float64
	_, err := fmt.Sscan(string(text), &found)
	testkit.Require(t, err == nil, "rate %q: %v", text, err)
	first, second := float64(tickRate())/1e3, float64(tickRate())/1e3
	for _, rate := range []float64{first, second} {
		if ratio := rate / found; rate > 0 && (ratio < 0.999 || ratio > 1.001) {
			t.Errorf("rate of the guest's clock is %v MHz, want %v", found, rate)
		}
	}
}

// TestCountInstructions has a guest whose clock advances by a nanosecond with each instruction do the same work again
// and again. All loops take the same whole number of nanoseconds an iteration, besides the guest's few interrupts.
func TestCountInstructions(t *testing.T) {
	t.Parallel()
	exe := testkit.Must(os.Executable())(t)
	o, stdout, _ := guestOptions(t, exe)
	o.CountInstructions = true
	o.Env = append(os.Environ(), loopVariable+"=1")
	code, err := Run(t.Context(), o)
	testkit.Require(t, err == nil && code == 0, "exit code %d, %v", code, err)
	var cpus int
	var took [loops]float64
	_, err = fmt.Fscan(stdout, &cpus, &took[0], &took[1], &took[2], &took[3], &took[4])
	testkit.Require(t, err == nil && cpus == 1, "stdout %q: %v", stdout, err)
	instructions := math.Floor(slices.Min(took[:]) * 1000 / iterations)
	for _, microseconds := range took {
		beyond := microseconds*1000/iterations - instructions
		testkit.Check(t, instructions > 0 && beyond >= 0 && beyond < 0.1,
			"loops took %v µs: one has %.3f ns an iteration more than %g", took, beyond, instructions)
	}
	t.Logf("loops took %v µs, %g instructions an iteration", took, instructions)
}

// TestTimeout lets a command run into the timeout.
func TestTimeout(t *testing.T) {
	t.Parallel()
	for limit := 3 * time.Second; ; limit *= 10 {
		o, stdout, _ := guestOptions(t, "sh", "-c", "echo said > /dev/console; echo out; sleep 1000")
		o.Timeout = limit
		_, err := Run(t.Context(), o)
		var guest *GuestError
		testkit.Require(t, errors.As(err, &guest) && errors.Is(err, ErrTimeout), "error %v", err)
		if stdout.Len() == 0 && limit < 5*time.Minute {
			continue // a busy machine has not come so far
		}
		if !strings.Contains(guest.Console, "said") || !strings.Contains(err.Error(), limit.String()) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q, console %q", err, guest.Console)
		}
		testkit.Check(t, stdout.String() == "out\n", "stdout %q", stdout)
		return
	}
}

// started is a writer that calls a function after it is written to.
type started struct {
	io.Writer
	call func()
}

func (s *started) Write(data []byte) (int, error) {
	defer s.call()
	return s.Writer.Write(data)
}

// TestCancel ends the context while a command runs, which takes notice or not.
func TestCancel(t *testing.T) {
	for _, test := range []struct {
		name, script string
		grace        time.Duration
		code         int
		last         string
	}{
		{"grace", "trap 'echo off; exit 3' INT; echo on; while :; do sleep 0.1; done", time.Minute, 3, "off\n"},
		{"deaf", "trap '' INT; echo on; sleep 1000", time.Second, 0, "on\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, stdout, _ := guestOptions(t, "bash", "-c", test.script)
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("enough")
			o.Stdout, o.Grace = &started{stdout, func() { cancel(why) }}, test.grace
			code, err := Run(ctx, o)
			testkit.Check(t, errors.Is(err, why) && code == test.code && strings.HasSuffix(stdout.String(), test.last),
				"exit code %d, %v, stdout %q", code, err, stdout)
		})
	}
}

// TestNoBoot gives QEMU an invalid kernel.
func TestNoBoot(t *testing.T) {
	t.Parallel()
	o, _, _ := guestOptions(t, "true")
	o.Kernel.Image = filepath.Join(t.TempDir(), "image")
	testkit.Succeed(t, os.WriteFile(o.Kernel.Image, make([]byte, 4096), 0o600))
	_, err := Run(t.Context(), o)
	var guest *GuestError
	testkit.Check(t, errors.As(err, &guest) && strings.Contains(err.Error(), "before it had booted") && guest.Stderr != "",
		"error %v", err)
}

// otherFileSystem mounts one for the threads that the test's goroutine is on. The guest's processes start from there
// too.
func otherFileSystem(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	runtime.LockOSThread() // and not unlocked, so that the thread ends with the test
	testkit.Succeed(t, unix.Unshare(unix.CLONE_NEWNS))
	testkit.Succeed(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	testkit.Succeed(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() {
		err := unix.Unmount(dir, 0)
		testkit.Check(t, err == nil, "%v", err)
	})
	return dir
}
