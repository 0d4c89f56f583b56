# What to type. `make demo` is the two-command start after `git clone`; `make test` is what CI runs.

# A development build: it is the same that the tests use, and reaches the first success in half the time of an
# optimised one (whose link-time optimisation alone takes a minute). `make build` makes the one to install.
CARGO ?= cargo
BUILD ?= $(CARGO) build --bin builder

.PHONY: demo test bench bench-isolation lint build ground

demo:
	integration/ground/up
	$(BUILD)
	examples/arm/demo

test:
	.ci/run

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items

# The program to install: static, stripped. Its path is printed.
build:
	$(CARGO) build --release --bin builder
	@find $${CARGO_TARGET_DIR:-target} -path '*/release/builder' -type f

# Against buildah on this machine, as ratios; see the script.
bench: build
	integration/ground/up
	integration/ground/bench

# What each way to keep a RUN apart costs, in pods of the test ground, as ratios. As root.
bench-isolation: build
	integration/ground/up
	BUILDER_BENCH_PROGRAM=$$(find $${CARGO_TARGET_DIR:-$$PWD/target} -path '*/release/builder' -type f | head -n 1) \
	  $(CARGO) test --test integration what_each_way_costs -- --ignored --nocapture

ground:
	integration/ground/up
