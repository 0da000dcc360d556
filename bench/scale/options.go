// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/spf13/pflag"
)

// Names of the benchmarks.
const (
	Scale   = "scale"
	Rules   = "rules"
	Latency = "latency"
	Fleet   = "fleet"
)

type options struct {
	Services  []int         `json:"services"` // one number, or several that rise
	Endpoints int           `json:"endpoints_per_service"`
	Timeout   time.Duration `json:"timeout_ns"`
	Seed      uint64        `json:"seed"`
	IPTables  string        `json:"iptables"` // the variant
	Subjects  []string      `json:"subjects"`

	Runs    int           `json:"runs,omitempty"`
	Changes int           `json:"changes,omitempty"` // in each run, at most
	Burst   int           `json:"burst,omitempty"`   // changes in one
	Bursts  int           `json:"bursts,omitempty"`  // in each run, at most
	Budget  time.Duration `json:"budget_ns,omitempty"`

	Ports int `json:"ports,omitempty"` // of a Service that is created in the end

	Sample int `json:"sample,omitempty"` // connections for each number of Services, at most

	// Of latency.
	Rounds  int `json:"rounds,omitempty"`
	Seconds int `json:"seconds_per_turn,omitempty"`
	Rate    int `json:"requests_per_second,omitempty"`

	// Of fleet.
	Proxies     int           `json:"proxies,omitempty"`
	Churn       int           `json:"churn,omitempty"` // endpoints that are replaced in a second, for ChurnTime
	ChurnTime   time.Duration `json:"churn_time_ns,omitempty"`
	Rollout     int           `json:"rollout_endpoints,omitempty"`
	RolloutRate int           `json:"rollout_per_second,omitempty"`

	kind       string
	nginx      string // path of the program
	load       string // path of the load generator
	slipstream string // path of the program
	quiet      time.Duration
	calmLimit  time.Duration

	dir string // of configurations and logs
	log upstream.Log
}

// subject is a proxy that is measured.
type subject struct {
	proxies.Kind
	program string // path
}

// The variants of the iptables commands. Both are installed on Debian, where iptables-nft is
// the default. Its version 1.8.9 looks through all chains for each chain it adds: a start of
// kube-proxy with 1,500 Services took 16 s, and one with 2,000 took 45 s, nearly all of it in
// iptables-restore. That would measure a defect of one version.
const (
	legacyVariant = "legacy"
	nftVariant    = "nft"
)

// The limits follow from the ranges of addresses.
const (
	maxServices     = 500_000
	maxEndpoints    = 1000
	maxAllEndpoints = 5_000_000
	maxNodes        = 189 // of a site

	// singles is how many Services have one endpoint, which single changes replace.
	singles = 16
)

func (o *options) most() int { return o.Services[len(o.Services)-1] }

// kinds are what a benchmark can measure: rules that have counters, or of whose changes the kernel tells.
func (o *options) kinds() []proxies.Kind {
	switch o.kind {
	case Rules:
		return []proxies.Kind{proxies.SlipstreamIPTables, proxies.KubeProxyIPTables}
	case Fleet:
		return []proxies.Kind{proxies.Slipstream, proxies.KubeProxyNFTables}
	}
	return proxies.AllKinds
}

// New returns one of the benchmarks by its name.
func New(kind string) bench.Benchmark {
	return &options{kind: kind, log: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}}
}

// AddFlags adds the flags.
func (o *options) AddFlags(f *pflag.FlagSet) {
	services, subjects := []int{10_000}, proxies.Kinds
	switch o.kind {
	case Scale:
		f.IntVar(&o.Runs, "runs", 1, "runs of each subject, each a new process on a new node, in turns")
		f.IntVar(&o.Burst, "burst", 1000, "changes in a burst")
		f.IntVar(&o.Bursts, "bursts", 5, "bursts in each run, at most; see --budget")
		f.IntVar(&o.Ports, "ports", 0, "in nftables modes, in the end of each run, create a Service with as many ports; for Slipstream, a range of ports")
		// The kernel frees rules of ten thousand Services for a while.
		o.addChanges(f, 200, 2*time.Minute)
	case Rules:
		services, subjects = []int{10, 100, 1000, 10_000}, o.kinds()
		f.IntVar(&o.Sample, "sample", 100, "Services that are connected to, with each number of them")
	case Latency:
		services = []int{1, 10, 100, 1000, 10_000}
		f.IntVar(&o.Rounds, "rounds", 5, "rounds of turns with each number of Services")
		f.IntVar(&o.Seconds, "seconds", 3, "length of a turn")
		f.IntVar(&o.Rate, "rate", 1000, "requests a second")
		f.StringVar(&o.nginx, "nginx", "nginx", "the `program` that serves")
		f.StringVar(&o.load, "load", bench.Beside("bench-load"), "the load generator, a `program`")
	case Fleet:
		services, subjects = []int{1000}, o.kinds()
		f.IntVar(&o.Proxies, "proxies", 100, "proxies in a fleet")
		f.IntVar(&o.Rollout, "rollout", 0, "endpoints of one more Service, in slices of 100, which are replaced at --rate during --churn-time, beside --churn others")
		f.IntVar(&o.RolloutRate, "rate", 0, "endpoints of the --rollout that are replaced in each second, each by a write of its own")
		f.IntVar(&o.Churn, "churn", 2, "endpoints that are replaced in each second of --churn-time, in the end")
		f.DurationVar(&o.ChurnTime, "churn-time", 10*time.Second, "how long endpoints are replaced all the time")
		o.addChanges(f, 20, time.Minute)
	}
	f.IntSliceVar(&o.Services, "services", services, "Services in the cluster; rules and latency take several numbers, from few to many")
	f.StringSliceVar(&o.Subjects, "subjects", names(subjects), "what to measure, of "+strings.Join(names(o.kinds()), ", "))
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each Service")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "longest wait for one start, change or burst; a subject that needs longer is given up")
	f.DurationVar(&o.calmLimit, "calm", 5*time.Minute, "how long to wait, at most, for a subject to be idle")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the choice of Services")
	f.StringVar(&o.IPTables, "iptables", legacyVariant, "`variant` of the iptables commands that iptables modes use, legacy or nft")
	f.StringVar(&o.slipstream, "slipstream", bench.Beside("slipstream"), "slipstream `command`")
}

// addChanges adds the flags about changes, with default values.
func (o *options) addChanges(f *pflag.FlagSet, changes int, quiet time.Duration) {
	f.IntVar(&o.Changes, "changes", changes, "single changes in each run, at most; see --budget")
	f.DurationVar(&o.Budget, "budget", time.Minute, "no further change, or burst, begins in a run after this time (but 3 changes and 1 burst are made)")
	f.DurationVar(&o.quiet, "quiet", quiet, "how long to wait, at most, for the machine to be idle before each start")
}

// Validate finds values that cannot be measured.
func (o *options) Validate(context.Context) error {
	last := 0
	for _, n := range o.Services {
		if n <= last || n > maxServices {
			return fmt.Errorf("--services: %d after %d: must rise, to %d at most", n, last, maxServices)
		}
		last = n
	}
	if err := bench.SomeOf("--subjects", o.Subjects, names(o.kinds())...); err != nil {
		return err
	}
	if n := last * o.Endpoints; n > maxAllEndpoints {
		return fmt.Errorf("--endpoints: %d Services of %d endpoints are %d in all, more than %d", last, o.Endpoints, n, maxAllEndpoints)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("--timeout: must be more than 0")
	}
	const howMany = "--services: how many numbers there are"
	errs := []error{
		bench.Within("--endpoints", o.Endpoints, 1, maxEndpoints),
		bench.OneOf("--iptables", o.IPTables, legacyVariant, nftVariant),
	}
	switch o.kind {
	case Scale:
		errs = append(errs,
			bench.Within(howMany, len(o.Services), 1, 1),
			// As many Services of several endpoints as of one.
			bench.Within("--services", last, 2*singles, maxServices),
			bench.Within("--runs", o.Runs, 1, maxNodes/len(o.Subjects)),
			bench.Within("--changes", o.Changes, 1, 100_000),
			bench.Within("--burst", o.Burst, 1, 100_000),
			bench.Within("--bursts", o.Bursts, 1, 1000),
			bench.Within("--ports", o.Ports, 0, 20_000))
	case Rules:
		errs = append(errs, bench.Within("--sample", o.Sample, 1, 10_000), bench.Within(howMany, len(o.Services), 1, maxNodes/2))
	case Latency:
		errs = append(errs,
			bench.Within(howMany, len(o.Services), 1, maxNodes),
			bench.Within("--endpoints", o.Endpoints, 1, 100),
			bench.Within("--rounds", o.Rounds, 1, 100),
			bench.Within("--seconds", o.Seconds, 1, 600),
			bench.Within("--rate", o.Rate, 1, 100_000))
	case Fleet:
		errs = append(errs,
			bench.Within(howMany, len(o.Services), 1, 1),
			bench.Within("--services", last, 2*singles, 10_000),
			bench.Within("--proxies", o.Proxies, 1, maxNodes),
			bench.Within("--changes", o.Changes, 0, 10_000),
			bench.Within("--churn", o.Churn, 1, 1000),
			bench.Within("--rollout", o.Rollout, 0, 100_000),
			bench.Within("--rate", o.RolloutRate, 0, 10_000))
		if (o.Rollout >= cluster.SliceSize) != (o.RolloutRate > 0) || o.Rollout%cluster.SliceSize > 0 {
			errs = append(errs, fmt.Errorf("--rollout %d --rate %d: both or neither, and whole slices of %d", o.Rollout, o.RolloutRate, cluster.SliceSize))
		}
	}
	var err error
	o.slipstream, err = filepath.Abs(o.slipstream)
	return errors.Join(append(errs, err)...)
}

// Measure measures the subjects. One that could not be measured completely has failed in the result.
func (o *options) Measure(ctx context.Context, r *bench.Result) (err error) {
	bench.QuietLimit = o.quiet
	if err := o.directory(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	kubeProxy, err := upstream.Current.Binary(ctx, "kube-proxy", o.log)
	if err != nil {
		return err
	}
	var subjects []subject
	for _, k := range o.kinds() { // ratios are to the first one that is chosen
		if bench.OneOf("", string(k), o.Subjects...) != nil {
			continue
		}
		s := subject{k, kubeProxy}
		if k.IsSlipstream() {
			s.program = o.slipstream
		}
		subjects = append(subjects, s)
		r.Subjects = append(r.Subjects, bench.Subject{Name: string(k), Version: version(ctx, s)})
	}
	switch o.kind {
	case Latency:
		return measureLatency(ctx, o, r, subjects)
	case Fleet:
		return measureFleet(ctx, o, r, subjects)
	}
	rounds, series := o.Runs, measuredSeries(o)
	r.Title = fmt.Sprintf("%s Services x %s endpoints on kube-apiserver; runs: %d", bench.Thousands(o.most()), bench.Thousands(o.Endpoints), o.Runs)
	if o.kind == Rules {
		rounds, series = len(o.Services), rulesSeries(o)
		r.Title = fmt.Sprintf("Rules executed for a new connection, Services of %s endpoints, at most %d of them drawn with seed %d", bench.Thousands(o.Endpoints), o.Sample, o.Seed)
	}
	e, err := newEnvironment(ctx, o, rounds*len(subjects))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	return r.InTurns(ctx, rounds, func(round, i int, samples bench.Samples) error {
		if err := e.fill(ctx, o.Services[min(round, len(o.Services)-1)]); err != nil {
			return err
		}
		if r.Subjects[i].Failed != "" {
			return nil
		}
		if err := e.run(ctx, subjects[i], samples); ctx.Err() == nil && err != nil {
			o.log("%s: %v", subjects[i].Kind, err)
			r.Subjects[i].Failed = err.Error()
		}
		return ctx.Err()
	}, series...)
}

// directory makes the place of configurations and logs, which the caller removes. All programs that are started from
// now on find the chosen variant of the iptables commands.
func (o *options) directory() (err error) {
	if o.dir, err = os.MkdirTemp("", "slipstream-scale-"); err != nil {
		return err
	}
	path, err := upstream.IPTablesPath(o.dir, o.IPTables)
	if err == nil {
		err = os.Setenv("PATH", path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("--iptables %s: %w", o.IPTables, err), os.RemoveAll(o.dir))
	}
	return nil
}

// pause between two changes. All subjects let one second pass between two syncs, unless
// changes are rare (Slipstream's nftables mode).
const pause = 1200 * time.Millisecond

func names(kinds []proxies.Kind) []string {
	return collect.From(kinds, func(k proxies.Kind) string { return string(k) })
}

// version is the version that a subject's program prints, with that of the iptables commands if
// it uses them.
func version(ctx context.Context, s subject) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	commands := [][]string{{s.program, "--version"}, {"iptables", "--version"}}
	if s.IsSlipstream() {
		commands[0] = []string{s.program, "run", "--version"}
	}
	if s.Mode() != "iptables" {
		commands = commands[:1]
	}
	var all []string
	for _, c := range commands {
		if out, err := exec.CommandContext(ctx, c[0], c[1:]...).Output(); err == nil {
			all = append(all, strings.TrimSpace(string(out)))
		}
	}
	return strings.Join(all, ", ")
}
