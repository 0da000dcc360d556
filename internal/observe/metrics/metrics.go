// SPDX-License-Identifier: Apache-2.0

// Package metrics provides the proxy's metrics for Prometheus: those of kube-proxy, under the
// same names, so that its dashboards and alerts keep working, and Slipstream's own, with
// the prefix slipstream_. docs/metrics.md lists them.
package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // metrics of client-go
	"k8s.io/klog/v2"
)

// Metrics are the proxy's metrics. Methods may be called by several goroutines.
type Metrics struct {
	registry  *prometheus.Registry
	kubeProxy kubeProxy

	// Their help texts, in New, say what they count.
	SyncFailures      *prometheus.CounterVec
	Elements          prometheus.Counter
	Repairs           prometheus.Counter
	ObjectProblems    prometheus.Counter
	Services          prometheus.Gauge
	ReaderWait        prometheus.Counter
	ConntrackFailures prometheus.Counter
	FeatureMissing    *prometheus.GaugeVec // by mode, family and feature
	contested         *prometheus.GaugeVec

	OutlierEjections *prometheus.CounterVec // by detection

	// Of background comparisons with the kernel's content.
	verifyRuns                      *prometheus.CounterVec
	verifyDifferences, verifyLastAt prometheus.Gauge
}

// Kinds of sync, as label values.
const (
	Full   = "full"
	Change = "change"
)

// Results of a comparison, as label values.
const (
	verifySame      = "same"
	verifyDifferent = "different"
	verifyFailed    = "failed"
)

// New makes the metrics. Those of kube-proxy are served from OnMode on.
func New() *Metrics {
	m := &Metrics{
		registry:          prometheus.NewRegistry(),
		kubeProxy:         newKubeProxy(),
		SyncFailures:      prometheus.NewCounterVec(counter("sync_failures_total", "Changes and full contents that the kernel rejected, by kind."), []string{"kind"}),
		Elements:          prometheus.NewCounter(counter("elements_written_total", "Objects written to and deleted from the kernel.")),
		Repairs:           prometheus.NewCounter(counter("repairs_total", "Repairs after the ruleset was modified externally.")),
		ObjectProblems:    prometheus.NewCounter(counter("object_problems_total", "Objects, or parts of objects, that could not be applied.")),
		Services:          prometheus.NewGauge(gauge("services", "Services that are proxied.")),
		ReaderWait:        prometheus.NewCounter(counter("reader_wait_seconds_total", "Time for which updates of the kernel waited for programs that read the ruleset.")),
		ConntrackFailures: prometheus.NewCounter(counter("conntrack_failures_total", "Failures to find or delete stale conntrack entries.")),
		contested: prometheus.NewGaugeVec(gauge("contested_frontends", "Frontends that a Service claims and another Service has."),
			[]string{"namespace", "service"}),
		OutlierEjections: prometheus.NewCounterVec(counter("outlier_ejections_total",
			"Endpoints that answered neither clients nor this node, by detection: on for those that were ejected, report for those that would be."), []string{"detection"}),
		FeatureMissing: prometheus.NewGaugeVec(gauge("kernel_feature_missing", "1 for each feature that a proxy mode needs and that this node lacks."),
			[]string{"mode", "family", "feature"}),
		verifyRuns: prometheus.NewCounterVec(counter("verify_runs_total",
			"Comparisons of the kernel's whole content with the desired state, by result: same, different or failed."), []string{"result"}),
		verifyDifferences: prometheus.NewGauge(gauge("verify_differences", "Differences found by the last comparison.")),
		verifyLastAt:      prometheus.NewGauge(gauge("verify_last_success_timestamp_seconds", "When a comparison last completed, with any result, in Unix time.")),
	}
	// Counters with these labels exist from the start.
	for _, kind := range []string{Full, Change} {
		m.SyncFailures.WithLabelValues(kind)
	}
	for _, detection := range []string{"on", "report"} {
		m.OutlierEjections.WithLabelValues(detection)
	}
	for _, result := range []string{verifySame, verifyDifferent, verifyFailed} {
		m.verifyRuns.WithLabelValues(result)
	}
	m.registry.MustRegister(m.SyncFailures, m.Elements, m.Repairs, m.ObjectProblems, m.Services, m.ReaderWait, m.FeatureMissing, m.ConntrackFailures, m.contested, m.OutlierEjections)
	return m
}

func counter(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts{Namespace: "slipstream", Name: name, Help: help}
}

func gauge(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts(counter(name, help)) }

// OnVerify serves the metrics of comparisons. It is called once, if there are comparisons.
func (m *Metrics) OnVerify() {
	m.registry.MustRegister(m.verifyRuns, m.verifyDifferences, m.verifyLastAt)
}

// OnAPI serves when the API server last sent something; 0 before that.
func (m *Metrics) OnAPI(heard func() time.Time) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(gauge("api_last_heard_timestamp_seconds", "When the API server last sent something, in Unix time."), func() float64 {
		return float64(max(0, heard().Unix()))
	}))
}

// OnHealth serves what is wrong with the proxy now, by one of some reasons, and how full conntrack's table is.
func (m *Metrics) OnHealth(reasons []string, read func() (problems []string, entries, limit int, err error)) {
	m.registry.MustRegister(onScrape(func(s scrape) error {
		problems, n, most, err := read()
		if err != nil {
			return err
		}
		for _, reason := range reasons {
			s.gauge("slipstream_problem", "1 for each reason why the proxy is not well, and 0 for the others.", oneIf(slices.Contains(problems, reason)), "reason", reason)
		}
		s.gauge("slipstream_conntrack_entries", "Connections in the kernel's table.", float64(n))
		s.gauge("slipstream_conntrack_entries_max", "Most connections that the kernel's table takes.", float64(most))
		return nil
	}))
}

// Verified records the number of differences between the kernel's content and the desired
// state that a comparison found.
func (m *Metrics) Verified(differences int, at time.Time) {
	m.verifyRuns.WithLabelValues(map[bool]string{true: verifyDifferent, false: verifySame}[differences > 0]).Inc()
	m.verifyDifferences.Set(float64(differences))
	m.verifyLastAt.Set(seconds(at))
}

// VerifyFailed records that the kernel's content could not be read.
func (m *Metrics) VerifyFailed() { m.verifyRuns.WithLabelValues(verifyFailed).Inc() }

// gather returns the metrics of this package, of Kubernetes' libraries, of the process and
// of the Go runtime.
func (m *Metrics) gather() prometheus.Gatherer {
	return prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
}

// Handler serves the metrics in the formats that Prometheus reads. Metrics that cannot be
// read are left out, and the error is logged once.
func (m *Metrics) Handler(log klog.Logger) http.Handler {
	return promhttp.HandlerFor(m.gather(), promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      &errorLog{log: log},
	})
}

type errorLog struct {
	log  klog.Logger
	mu   sync.Mutex
	errs logonce.Errors
}

// Println implements promhttp.Logger.
func (l *errorLog) Println(v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs.Log(l.log, errors.New(strings.TrimSpace(fmt.Sprintln(v...))), "Not all metrics could be gathered")
}

// The release of Kubernetes whose kube-proxy Slipstream is compatible with.
const (
	KubernetesMajor = "1"
	KubernetesMinor = "37"
)

// OnBuild serves kubernetes_build_info: Slipstream's version under the labels that all
// Kubernetes components have. Commit, tree state and date are empty if Go did not record
// them at build time.
func (m *Metrics) OnBuild(version string) {
	vcs := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			vcs[s.Key] = s.Value
		}
	}
	state := map[string]string{"true": "dirty", "false": "clean"}[vcs["vcs.modified"]]
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{
			"major": KubernetesMajor, "minor": KubernetesMinor,
			"git_version": version, "git_commit": vcs["vcs.revision"], "git_tree_state": state, "build_date": vcs["vcs.time"],
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	})
	info.Set(1)
	m.registry.MustRegister(info)
}
