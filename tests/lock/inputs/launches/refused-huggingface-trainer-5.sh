python finetune.py --per_device_train_batch_size 1 --num_train_epochs 1 --use_lora
